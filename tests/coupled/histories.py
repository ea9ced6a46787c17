"""Random histories of everything that a user can do, with one person in them who is called `TARGET`.

An event is the same in both worlds, but for the target's part in it. Names of owners and of records are the script's own.
"""

from dataclasses import dataclass, field, replace
from itertools import count, islice, product

import numpy as np

from coupled.tape import ALL
from indknn.settings import Settings

TARGET = "target"
START = 500_000
"""The hour at which every history begins."""
ASKING_BETWEEN = {"server"}
"""The roads on which somebody may ask between the releases of one round. Elsewhere an answer waits for the round."""
ANALYSTS = (None, "ann", "bob", "eve")
MODES = {
    "algorithm 3": {"reuse": "none", "mode": "votes"},
    "labels": {"reuse": "labels", "mode": "votes"},
    "model": {"mode": "model"},
    "public rows": {"mode": "model"},
    "numbers": {"reuse": "none", "mode": "votes", "target": "number", "bounds": (0.0, 4.0)},
    "numbers, reuse": {"reuse": "labels", "mode": "votes", "target": "number", "bounds": (0.0, 4.0)},
    "numbers, model": {"mode": "model", "target": "number", "bounds": (0.0, 4.0)},
    "numbers, public rows": {"mode": "model", "target": "number", "bounds": (0.0, 4.0)},
}
INDEXES = {"exact": {}, "lsh": {"seed": 1, "n_tables": 4, "n_bits": 3}, "sketch": {"seed": 1, "n_bits": 64}}


@dataclass(frozen=True)
class Row:
    """A record: its name in the script, whose it is, features, label. `old` is the record that it replaces.

    Names of the target's records begin with a t.
    """

    name: str
    owner: str
    x: tuple
    label: int
    old: str | None = None
    key: str | None = None
    """The caller's own id. A record of the same id takes the place of this one."""
    expires: int | None = None
    """The hour from which it takes no part."""


@dataclass(frozen=True)
class Records:
    """Records come. `how` is add, upsert, replace_all or fit; the last two take the place of all others."""

    how: str
    rows: tuple
    settings: Settings | None = None
    """What a fit in memory goes on with."""

    @property
    def of_others(self):
        return any(row.owner != TARGET for row in self.rows)


@dataclass(frozen=True)
class Forget:
    """These people go, or these records."""

    owners: tuple = ()
    records: tuple = ()

    @property
    def of_others(self):
        """Whether it is about nobody else than others."""
        return TARGET not in self.owners and not any(name.startswith("t") for name in self.records)


@dataclass(frozen=True)
class Query:
    """A request. `adaptive` moves the queries by what the analyst was told last; `unless` can prevent it: 0 after an even
    label, or before the first answer; 1 after an odd one.
    """

    Q: tuple
    analyst: str | None
    name: str | None = None
    most: int | None = None
    adaptive: bool = False
    unless: int | None = None


@dataclass(frozen=True)
class Ask:
    """Requests that come together."""

    requests: tuple


@dataclass(frozen=True)
class Statement:
    """Somebody asks what they have spent."""

    owner: str

    @property
    def of_others(self):
        return self.owner != TARGET


@dataclass(frozen=True)
class Moment:
    """Something that concerns nobody in particular: purge, restart, fail, train, or half of a round and a restart."""

    how: str


@dataclass(frozen=True)
class Later:
    """So many hours go by."""

    hours: int


@dataclass(frozen=True)
class Hold:
    """A legal hold of somebody begins, or ends."""

    owner: str
    begins: bool

    @property
    def of_others(self):
        return self.owner != TARGET


@dataclass(frozen=True)
class Pieces:
    """The operator has the shared model trained. Between its releases all of these happen."""

    parts: tuple


@dataclass(frozen=True)
class Refused:
    """Something that is not allowed: an unknown person or record, a wrong label, too many features."""

    how: str


@dataclass(frozen=True)
class History:
    """What happens, on which road, under which settings."""

    seed: int
    road: str
    settings: Settings
    events: tuple
    small: bool = False
    """With tiny blocks, so that every loop over blocks turns more than once."""
    public: tuple | None = None
    """Unlabelled public rows."""
    table: tuple = ()
    """Rows of a table, as (owner, value), for whose counts people pay before anything else."""


@dataclass
class Writer:
    """Writes a history. It knows who would be there if everything was done."""

    rng: np.random.Generator
    road: str
    settings: Settings
    apart: bool
    moody: float
    """How often a question depends on the last answer."""
    held: dict = field(default_factory=dict)  # record name -> owner
    asked: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    people: int = 0
    made: int = 0

    def __post_init__(self):
        self.centres = self.rng.normal(size=(3, self.settings.n_features))
        self.keyed = self.rng.choice([0.0, 0.0, 0.4])
        self.orderly = bool(self.rng.random() < 0.7)  # near each other, near in label: models can learn it

    def points(self, n):
        """Points around the centres; around the first of them, where the target lives, more than elsewhere."""
        which = self.rng.choice(3, size=n, p=[0.6, 0.2, 0.2])
        return self.centres[which] + 0.35 * self.rng.normal(size=(n, self.settings.n_features))

    def rows(self, owners, old=None, *, keyed=False):
        """New records of these owners. If `keyed`, some have ids of their owners' own: all of them, or none."""
        X, found, keyed = self.points(len(owners)), [], keyed and self.rng.random() < self.keyed
        for owner, x in zip(owners, X, strict=True):
            self.made += 1
            label = np.abs(self.centres - x).sum(axis=1).argmin() if self.orderly else self.rng.integers(99)
            name = f"{'t' if owner == TARGET else 'r'}{self.made}"
            key = f"{owner}-{self.rng.integers(3)}" if keyed else None
            key = f"{owner}-{name}" if key in {row.key for row in found} - {None} else key
            said = int(label) % (len(self.settings.classes) or 5)
            found.append(Row(name, owner, tuple(x.tolist()), said, old, key))
        self.held |= {row.name: row.owner for row in found}
        return found

    def newcomers(self, n):
        """People who were never here, some of them with several records."""
        self.people += n
        names = [f"p{i}" for i in range(self.people - n, self.people)]
        return [name for name in names for _ in range(int(self.rng.choice([1, 1, 2, 4])))]

    def somebody(self, n=1):
        """Owners who were here at some time."""
        names = [f"p{i}" for i in range(self.people)]
        return self.rng.choice(names, size=min(n, len(names)), replace=False).tolist()

    def start(self):
        crowd = self.newcomers(int(self.rng.choice([3, 12, 45, 120])))
        mine = [TARGET] * int(self.rng.choice([0, 1, 1, 3]))
        return [Records("add", self._shuffled(self.rows([*crowd, *mine], keyed=True)))]

    def _shuffled(self, rows):
        return tuple(rows[i] for i in self.rng.permutation(len(rows)))

    def event(self):
        kinds = {
            self.ask: 45,
            self.add: 10,
            self.target_comes: 6,
            self.upsert: 8,
            self.forget: 6,
            self.target_goes: 4,
            self.forget_records: 3,
            self.replace: 2,
            self.statement: 4,
            self.moment: 12,
            self.pieces: 5 if self.settings.advised else 0,
            self.refused: 3,
        }
        weights = np.array(list(kinds.values())) / sum(kinds.values())
        return list(kinds)[self.rng.choice(len(kinds), p=weights)]()

    def ask(self):
        requests = []
        for _ in range(int(self.rng.choice([1, 1, 1, 2, 3]))):
            analyst = ANALYSTS[self.rng.choice(len(ANALYSTS), p=[0.2, 0.4, 0.25, 0.15])]
            if self.apart and self.settings.advised:  # what the unnamed one was told may count for all
                analyst = analyst or "bob"
            kind = self.rng.choice(["new", "again", "named", "replayed", "conflict"], p=[0.68, 0.14, 0.08, 0.05, 0.05])
            name = f"q{len(self.requests)}" if kind == "named" else None
            Q = tuple(map(tuple, self.points(int(self.rng.choice([1, 2, 5, 9]))).tolist()))
            if kind == "again" and self.asked:
                Q = self.asked[self.rng.integers(len(self.asked))]
            elif kind in {"replayed", "conflict"} and self.requests:
                earlier = self.requests[self.rng.integers(len(self.requests))]
                name, analyst = earlier.name, earlier.analyst
                Q = earlier.Q if kind == "replayed" else Q
            most = int(self.rng.integers(30, 120)) if self.rng.random() < 0.1 else None
            adaptive, unless = (bool(self.rng.random() < p) for p in (0.3 * (kind == "new"), self.moody))
            requests.append(Query(Q, analyst, name, most, adaptive, int(self.rng.integers(2)) if unless else None))
            self.asked.append(Q)
            if kind == "named":
                self.requests.append(requests[-1])
        return Ask(tuple(requests))

    def add(self):
        owners = self.newcomers(int(self.rng.choice([1, 2, 20]))) + self.somebody(int(self.rng.integers(3)))
        mine = [TARGET] * int(self.rng.choice([0, 0, 1, 2]))
        return Records("add", self._shuffled(self.rows([*owners, *mine], keyed=True)))

    def target_comes(self):
        return Records("add", tuple(self.rows([TARGET] * int(self.rng.choice([1, 2, 5])), keyed=True)))

    def upsert(self):
        names = [str(name) for name in self.rng.permutation(sorted(self.held))[:4]]
        mine = [name for name, owner in self.held.items() if owner == TARGET][:1]
        rows = [row for name in dict.fromkeys([*names, *mine]) for row in self.rows([self.held[name]], old=name)]
        rows += self.rows(self.newcomers(1))
        self.held = {name: owner for name, owner in self.held.items() if name not in {row.old for row in rows}}
        return Records("upsert", self._shuffled(rows))

    def replace(self):
        self.held.clear()
        owners = [*self.somebody(8), *self.newcomers(15), *[TARGET] * int(self.rng.choice([0, 1, 2]))]
        how = str(self.rng.choice(["replace_all", "fit"]))
        if how == "fit" and self.road == "engine" and self.rng.random() < 0.5:
            alike = [mode for mode, given in MODES.items() if ("bounds" in given) == self.settings.numeric]
            mode, index = (str(self.rng.choice(list(names))) for names in (alike, INDEXES))
            less = bool(self.settings.analysts)
            self.settings = settings_of(mode, index, self.rng, apart=self.apart or less, given_less=less)
            self.asked.clear()
            self.__post_init__()
        return Records(how, self._shuffled(self.rows(owners)), self.settings)

    def forget(self):
        mine = [TARGET] * int(self.rng.choice([0, 0, 1]))
        return self._gone(Forget(owners=(*self.somebody(int(self.rng.choice([1, 1, 5]))), *mine)))

    def target_goes(self):
        return self._gone(Forget(owners=(TARGET,)))

    def forget_records(self):
        return self._gone(Forget(records=tuple(self.rng.permutation(sorted(self.held))[:3].tolist())))

    def _gone(self, event):
        self.held = {n: o for n, o in self.held.items() if n not in event.records and o not in event.owners}
        return event

    def statement(self):
        return Statement(self.somebody()[0] if self.rng.random() < 0.8 else TARGET)

    def moment(self):
        return Moment(
            str(self.rng.choice(["purge", "restart", "fail", "train", "half"], p=[0.15, 0.25, 0.2, 0.25, 0.15]))
        )

    def pieces(self):
        kinds = [self.add, self.target_comes, self.upsert, self.forget, self.target_goes, self.forget_records]
        kinds += [self.ask] * (self.road in ASKING_BETWEEN)
        return Pieces(tuple(kinds[self.rng.integers(len(kinds))]() for _ in range(self.rng.integers(1, 5))))

    def refused(self):
        return Refused(str(self.rng.choice(["owner", "record", "label", "features", "queries"])))


def settings_of(mode, index, rng, *, apart=False, given_less=False):
    """Settings of this mode, under which budgets run out within a history or last, as it comes.

    Where analysts are seen `apart`, there is no global ledger. If some are `given_less`, eve has so little that she sees
    nothing that is shared.
    """
    pick = lambda *values: values[rng.choice(len(values))]  # noqa: E731
    epsilon, share = pick(0.5, 2.0, 8.0, 30.0, 120.0), pick(0.1, 0.5, 0.95)
    less = {"eve": 0.05 * epsilon} | ({"bob": 0.8 * epsilon} if share <= 0.5 else {})
    behind = None if apart else pick(None, None, 0.7 * epsilon, 1.3 * epsilon)
    less = less if given_less and behind is None else {}
    kernel, normalize = pick(("cosine", True), ("rbf", True), ("rbf", index == "sketch"))  # a sketch is of angles
    d, c = pick(2, 4, 7), pick(1, 2, 3, 5)
    return Settings(
        d,
        () if "bounds" in MODES[mode] else tuple(range(c)),
        epsilon=epsilon,
        max_queries=pick(None, 6, 40, 400),
        kernel=kernel,
        normalize=normalize,
        bandwidth=pick(None, 2.0),
        tau=pick(None, 0.2, 0.6),
        sigma2=pick(None, 0.1, 0.5, 2.0, 20.0),
        accountant=pick("gdp", "rdp"),
        index=index,
        index_options=INDEXES[index],
        center=pick(None, None, tuple([0.1] * d)),
        max_records_per_query=pick(None, None, 2),
        free_repeats=pick(True, True, False),
        global_epsilon=behind,
        model_share=share,
        analysts=less,
        **MODES[mode],
    )


def random_history(seed, road, mode, index, *, events=30, apart=False, moody=None, timely=False):
    """A history of about so many events. How many questions are asked may depend on answers, if they are `moody`.

    If it is `timely`, hours go by, in which records expire, and holds begin and end.
    """
    rng = np.random.default_rng([seed, *map(ord, road + mode + index)])
    settings = settings_of(mode, index, rng, apart=apart, given_less=bool(rng.random() < 0.4))
    writer = Writer(rng, road, settings, apart, 0.15 * (not apart) if moody is None else moody)
    public = tuple(map(tuple, writer.points(70).tolist())) if "public rows" in mode else None
    script = [*writer.start(), *(writer.event() for _ in range(events))]
    script = _in_time(script, np.random.default_rng([seed, 27])) if timely else script
    paying = mode == "model" and road != "engine" and not settings.analysts and rng.random() < 0.5
    table = tuple((name, str(rng.integers(9))) for name in ["p0", "p1", "p1", TARGET, TARGET, "p2"]) if paying else ()
    return History(seed, road, settings, tuple(script), bool(rng.random() < 0.5), public, table)


def _in_time(script, rng):
    """The same events in the course of some hours, in which records expire and holds begin and end.

    This is drawn apart, so that the rest of a history stays as it is.
    """
    hour, found = START, []

    def dated(event):
        if isinstance(event, Pieces):
            return replace(event, parts=tuple(later(event.parts)))
        if not isinstance(event, Records):
            return event
        dates = [hour + int(rng.integers(1, 30)) if rng.random() < 0.25 else None for _ in event.rows]
        return replace(event, rows=tuple(replace(row, expires=h) for row, h in zip(event.rows, dates, strict=True)))

    def later(events):
        nonlocal hour
        for event in events:
            if rng.random() < 0.2:
                hours = int(rng.choice([1, 5, 12]))
                hour += hours
                yield Later(hours)
            if rng.random() < 0.1:
                yield Hold(TARGET if rng.random() < 0.5 else f"p{rng.integers(4)}", bool(rng.random() < 0.6))
            yield dated(event)

    found += later(script)
    return found


def short_histories(most, events=8, part=0, parts=1):
    """Histories of a few events, most of them in memory, each with the observer whom it is about: every so manyth."""
    roads = (*("engine",) * 3, "store", *("engine",) * 3, "server", *("engine",) * 3, "cluster")
    kinds = ((seed, *kind) for seed in count(1) for kind in enumerate(product(MODES, INDEXES, roads)))
    for seed, i, (mode, index, road) in islice(kinds, part, most, parts):
        only = (ALL, "ann", ALL, "eve")[(seed + i) % 4]
        timely = bool((seed + i) % 3)
        yield random_history(seed, road, mode, index, events=events, apart=only is not ALL, timely=timely), only

"""Neighbouring histories and the privacy loss of a transcript.

A scenario is a script of events: somebody is added or forgotten, a query is asked, the shared model is trained. One
owner is the *target*. In one world the target's events happen, and in the other they do not. Everything else is the
same. The script may use everything that was released so far (`View`), so adversaries are adaptive.

The adversary knows everybody's records. They keep two *shadows*. These are shards of the product: one holds all people
except the target, and one holds only the target. They get the released counts and sums. From the shadows follows by how
much the target shifts each release, and from which value. For a Gaussian release x with scale s, shifted by Δ from b,
the log-likelihood ratio is ((x - b)·Δ - |Δ|²/2)/s². The sum over the transcript is the best possible score (Neyman &
Pearson 1933).

The histories that are audited stand at the end. Their stores are small, because only records near the target matter to
an adversary. The target is at `AXIS`, and `near(i)` are different queries around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias

import numpy as np
from scipy.special import log_ndtr, logsumexp

from indknn.answering import predictor
from indknn.answering.predictor import Transcript, keys_of
from indknn.core import accounting
from indknn.core.inputs import as_owner_list
from indknn.core.mechanism import MIN_K
from indknn.core.noise import Noise
from indknn.engine import Engine, new_ledger
from indknn.ledger import Scope
from indknn.models import adviser, numbers, shared_model
from indknn.models.shown_numbers import ShownNumbers
from indknn.records.shard import Admitted, Shard, new_index
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, IntArray, OwnerId, Vectors, tau_on_grid
from indknn_lab.audits.patches import patched
from indknn_lab.audits.tap import Noised, tap

Sight: TypeAlias = Literal["labels", "counts", "votes"]
"""What the adversary sees: only labels, or noisy counts and labels, or noisy counts and noisy votes."""

TARGET: OwnerId = "target"


@dataclass(frozen=True)
class Ask:
    """A query, and whether the audited adversary sees its answer."""

    query: FloatArray
    analyst: Scope = None
    seen: bool = True


@dataclass(frozen=True)
class Add:
    """Records of one owner, or of several owners, are added."""

    X: FloatArray
    y: tuple[int, ...]
    owner: OwnerId | tuple[OwnerId | int, ...] = TARGET

    @property
    def owners(self) -> list[OwnerId]:
        """The owner of each record."""
        return as_owner_list(self.owner) if isinstance(self.owner, tuple) else [self.owner] * len(self.y)


@dataclass(frozen=True)
class Forget:
    """An owner is forgotten."""

    owner: OwnerId = TARGET


@dataclass(frozen=True)
class Train:
    """The operator asks for training. It trains the shared model, or checks whether there are enough newcomers."""


Event: TypeAlias = Ask | Add | Forget | Train


@dataclass
class View:
    """What the adversary knows so far: the labels seen, and the log-likelihood ratio of "in" against "out"."""

    labels: list[int] = field(default_factory=list)
    loss: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A history with and without the target, what the adversary sees of it, and the claim about it.

    The claim is the ε of the settings, unless analysts share their answers or there is a global ledger. `share` is the
    relative number of trials. `hurried` puts the constants of `HURRY` in place.
    """

    name: str
    about: str
    settings: Settings
    script: Callable[[View, np.random.Generator], Iterator[Event]]
    sight: Sight = "votes"
    claimed_epsilon: float | None = None
    exact_noise: bool = False
    share: float = 1.0
    hurried: bool = False

    @property
    def epsilon(self) -> float:
        """The ε that is claimed."""
        return self.settings.epsilon if self.claimed_epsilon is None else self.claimed_epsilon


class Shadow:
    """What an adversary who knows all records expects of each release, with and without the target."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self.others = Shard(new_index(settings), new_ledger(settings))
        self.target = Shard(new_index(settings), new_ledger(settings))
        self._transcripts: dict[Scope, Transcript] = {}

    def apply(self, event: Add | Forget) -> None:
        """Add or forget records in the shadows."""
        shard = self.target if event.owner == TARGET else self.others
        if isinstance(event, Add):
            shard.add(*self._settings.prepare(event.X, np.array(event.y)), event.owners)
        else:
            shard.forget(shard.slots_of_owners([event.owner]))

    def keep_step(self, engine: Engine) -> None:
        """Copy public state of the product: rounds that have started, whose answers count for everybody, the model."""
        model = engine.predictor.model
        for shard in (self.others, self.target):
            shard.epoch, shard.ledger.joint = engine.shard.epoch, engine.ledger.joint
            if model is not None and isinstance(model.shown, ShownNumbers):
                shard.show(model.shown.rule)

    def shared_loss(self, released: Sequence[Noised]) -> float:
        """The log-likelihood ratio of what every analyst sees. It also charges the shadows for it."""
        total = 0.0
        for one in released:
            if one.again is not None:
                others, target = one.again(self.others), one.again(self.target)
                total += gaussian_loss(one.noisy[0] - others, target, one.scales[0] if one.scales else GRID)
        return total

    def loss(self, query: Vectors, analyst: Scope, released: Sequence[Noised], sight: Sight) -> float:
        """The same for what one query released to the analyst who asked."""
        total, admitted = 0.0, None
        for one in released:
            if one.again is not None:
                continue
            if one.kind == "count":
                admitted = others, target = self._admit(query, one, analyst)
                if sight != "labels":
                    x, shift = one.noisy[0] - others.total * GRID, np.array([target.total * GRID])
                    total += gaussian_loss(x, shift, one.scales[0] if one.scales else GRID)
            else:
                total += self._votes_loss(query, analyst, one, admitted or self._admit(query, one, analyst), sight)
        return total

    def _admit(self, query: Vectors, one: Noised, analyst: Scope) -> tuple[Admitted, Admitted]:
        assert one.plan is not None
        tau, counted = tau_on_grid(one.plan.tau), one.kind == "count"
        (others,), (target,) = (shard.scan(query, tau) for shard in (self.others, self.target))
        return (
            self.others.admit(others, one.plan, analyst, counted=counted),
            self.target.admit(target, one.plan, analyst, counted=counted),
        )

    def _votes_loss(
        self, query: Vectors, analyst: Scope, one: Noised, admitted: tuple[Admitted, Admitted], sight: Sight
    ) -> float:
        (others, target), plan = admitted, one.plan
        assert plan is not None
        # An adversary who sees only labels must guess K. The guess is the count without the target and without noise.
        K = max(others.total, MIN_K) * GRID if sight == "labels" and not self._settings.advised else one.K
        transcript = self._transcript(analyst)
        base = transcript.votes(query, plan) + self.others.settle(others, K, plan)
        shift = self.target.settle(target, K, plan)
        transcript.add(query, keys_of(query)[0], one.label)
        if not shift.any():
            return 0.0
        if sight != "votes" or one.bare:
            return label_loss(one.label, base, shift, plan.scale2(K))
        x = one.noisy[0] - base
        if plan.contrast:  # only P times the votes is released
            return gaussian_loss(x - x.mean(), shift - shift.mean(), plan.scale2(K))
        return gaussian_loss(x, shift, plan.scale2(K))

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            pool = new_index(self._settings) if self._settings.reuse == "labels" else None
            self._transcripts[analyst] = Transcript(pool)
        return self._transcripts[analyst]


def play(scenario: Scenario, present: bool, noise: Noise, rng: np.random.Generator) -> float:
    """Run the history through the product, in one of the two worlds. Returns the score of what the adversary saw."""
    with hurried() if scenario.hurried else nullcontext(), tap() as tape:
        engine, shadow, view = Engine(scenario.settings, noise), Shadow(scenario.settings), View()
        for event in scenario.script(view, rng):
            if isinstance(event, Add | Forget):
                if present or event.owner != TARGET:
                    _apply(engine, event)
                shadow.apply(event)
                continue
            tape.clear()
            label = _happens(engine, event)
            view.loss += shadow.shared_loss(tape)
            shadow.keep_step(engine)
            if isinstance(event, Ask) and event.seen:
                view.labels.append(label)
                query = scenario.settings.quantise(event.query[None, :], "the query")
                view.loss += shadow.loss(query, event.analyst, tape, scenario.sight)
    return view.loss


def _happens(engine: Engine, event: Ask | Train) -> int:
    """Make the event happen. Returns the label if it is a query."""
    if isinstance(event, Ask):
        return int(engine.predict(event.query[None, :], event.analyst)[0])
    for _ in engine.train():
        pass
    return -1


def _apply(engine: Engine, event: Add | Forget) -> None:
    if isinstance(event, Add):
        engine.add(event.X, np.array(event.y), event.owners)
    else:
        engine.forget_owners([event.owner])


HURRY: list[tuple[Any, str, Any]] = [
    (shared_model, "STEPS", 4),
    (shared_model, "RESERVE", 0.5),
    (shared_model, "COUNT_PRICE", 0.05),
    (shared_model, "RECOUNT_PRICE", 0.05),
    (shared_model, "CARD_PRICE", 0.1),
    (adviser, "MOST_NOISE", 1e9),
    (adviser, "MOST_WEIGHT", 1.0),
    (adviser, "LOOK_EVERY", 3),
    (adviser, "LATELY", 6),
    (numbers, "NUMBERS_RESERVE", 0.5),
    (numbers, "MOST_MEAN_STEPS", 1),
    (numbers, "MISFIT", 1e9),
    (predictor, "SCHEDULE_FIRST", 4),
]
"""Constants for short audits. The model learns in a few expensive steps, looks for newcomers after a few answers, and
always asks for votes."""


def hurried() -> AbstractContextManager[None]:
    """Put the constants of `HURRY` in place inside the `with`."""
    return patched(HURRY)


def gaussian_loss(x: IntArray | FloatArray, shift: IntArray | FloatArray, scale: int) -> float:
    """The logarithm of the ratio of the densities at x, with the shift and without it."""
    s = float(scale)
    a, d = x / s, shift / s
    return float((a * d - d * d / 2.0).sum())


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())


def label_loss(label: int, base: IntArray, shift: IntArray, scale: int) -> float:
    """The logarithm of the ratio of the probabilities that this label wins, with the shift and without it."""
    return _log_win(label, (base + shift) / scale) - _log_win(label, base / scale)


def _log_win(label: int, mean: FloatArray) -> float:
    """log P(argmax = label) for independent normals of variance 1 with these means, by numerical integration."""
    gaps = np.delete(mean[label] - mean, label)
    if len(gaps) == 1:
        return float(log_ndtr(gaps[0] / np.sqrt(2.0)))
    return float(logsumexp(_LOG_WEIGHTS + log_ndtr(_NODES[:, None] + gaps[None, :]).sum(axis=1)))


D = 8
AXIS = np.eye(D)[0]
Script = Callable[[View, np.random.Generator], Iterator[Event]]
P = ParamSpec("P")

_PLAIN = Settings(n_features=D, classes=(0, 1), epsilon=4.0, delta=1e-5, tau=0.5, reuse="none", mode="votes")
BASE = replace(_PLAIN, max_queries=24, sigma2=0.5, free_repeats=False)
MODEL = replace(BASE, mode="model", model_share=0.9)
ENDLESS = replace(MODEL, model_share=0.4, max_queries=None)
NUMBERS = replace(BASE, classes=(), target="number", bounds=(0.0, 1.0), sigma2=2.0)
NUMBERS_MODEL = replace(ENDLESS, classes=(), target="number", bounds=(0.0, 1.0), sigma2=2.0)
LABELS = replace(BASE, max_queries=1000, sigma2=0.3)  # counts are cheap, so the budget goes into votes


def near(i: int) -> FloatArray:
    """The i-th of many different directions close to the target's."""
    query: FloatArray = AXIS.copy()
    query[1 + i % (D - 1)] = 0.02 * (1 + i // (D - 1)) * (-1) ** i
    return query


def around(n: int) -> FloatArray:
    """The first n of these directions."""
    return np.stack([near(i) for i in range(n)])


def natural(seed: int, people: int) -> Iterator[Add]:
    """People with one record each, in random directions on the target's side."""
    if people:
        rng = np.random.default_rng(seed)
        X = AXIS + 0.5 * rng.normal(size=(people, D))
        yield Add(X, tuple(rng.integers(2, size=people).tolist()), tuple(map(str, range(people))))


def target(records: int = 1, labels: tuple[int, ...] = (1,)) -> Add:
    """The event that adds the target's records."""
    X = np.stack([near(3 * i) for i in range(records)])
    return Add(X, tuple(labels[i % len(labels)] for i in range(records)))


def with_parameters(
    script: Callable[Concatenate[View, np.random.Generator, P], Iterator[Event]],
) -> Callable[P, Script]:
    """A script with parameters. It is called with them alone, and is a script then."""
    return lambda *values, **named: lambda view, rng: script(view, rng, *values, **named)


@with_parameters
def asking(
    view: View,
    rng: np.random.Generator,
    queries: int,
    records: int = 1,
    labels: tuple[int, ...] = (1,),
    repeats: int = 1,
    people: int = 0,
    chosen: bool = True,
) -> Iterator[Event]:
    """Ask around the target, each query `repeats` times, with other people. If not `chosen`, queries are random."""
    yield from natural(1, people)
    yield target(records, labels)
    for i in range(queries):
        query = near(i) if chosen else AXIS + 0.5 * rng.normal(size=D)
        for _ in range(repeats):
            yield Ask(query)


@with_parameters
def poisoned(view: View, rng: np.random.Generator, queries: int, controlled: bool) -> Iterator[Event]:
    """Before each query the adversary's own people join, one for each label. They make a tie that the target breaks."""
    yield target()
    for i in range(queries):
        query = near(i) if controlled else AXIS + 0.5 * rng.normal(size=D)
        yield Add(np.stack([query, query]), (0, 1), (str(2 * i), str(2 * i + 1)))
        yield Ask(query)


def stopping(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """An adaptive script. If the last answer was evidence against the target, the next query is wide, otherwise exact.

    It stops when the adversary is sure.
    """
    yield from natural(2, 5)
    yield target()
    wide = AXIS + 0.8 * np.eye(D)[1]
    for i in range(12):
        if abs(view.loss) > 1.5:
            return
        against = bool(view.labels) and view.labels[-1] != 1
        yield Ask(wide + 0.01 * i * np.eye(D)[2] if against else near(i))


def coming_and_going(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The target is forgotten and comes back again and again, each time with other records."""
    for i in range(5):
        yield Add(near(i)[None, :], (i % 2,))
        yield Ask(near(i))
        yield Ask(near(20 + i))
        yield Forget()


@with_parameters
def analysts(
    view: View, rng: np.random.Generator, names: tuple[str, ...], seen: tuple[str, ...], queries: int
) -> Iterator[Event]:
    """Several analysts take turns. The adversary sees what some of them see."""
    yield target()
    for i in range(queries):
        for name in names:
            yield Ask(near(i), name, seen=name in seen)


def bystander(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The target is near no query, and other people are exactly at the threshold. The target must change nothing."""
    edge = AXIS + 1.7 * np.eye(D)[1]
    yield Add(np.stack([edge + 0.001 * i * np.eye(D)[2] for i in range(12)]), (1,) * 12, tuple(map(str, range(12))))
    yield Add(np.repeat(-AXIS[None, :] - 0.1 * np.eye(D)[1], 4, axis=0), (0,) * 4)
    for i in range(4):
        yield Ask(near(i))


def joining_later(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The target comes with many others after the model was trained. They are counted, and another round follows."""
    yield from natural(3, 4)
    for i in range(2):
        yield Ask(near(i), "a")
    yield Add(around(40), (0, 1) * 20, tuple(map(str, range(100, 140))))
    yield target()
    yield Train()
    for i in range(2, 8):
        yield Ask(near(i), "a")


@with_parameters
def rounds(view: View, rng: np.random.Generator, records: int, visits: int) -> Iterator[Event]:
    """The operator trains again and again. Each time the target is forgotten and comes back with many others."""
    for i in range(visits):
        names = tuple(str(100 * i + k) for k in range(20 * (i + 1)))
        yield Add(around(len(names)), (0, 1) * (len(names) // 2), names)
        yield target(records, (1, 0))
        yield Train()
        yield Forget()


def house(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The unnamed analyst's queries influence the model. Another analyst asks in between. The adversary sees both."""
    yield from natural(3, 4)
    yield target()
    for start in (0, 12):
        for i in range(start, start + 6):
            yield Ask(near(i))
        for i in range(start + 6, start + 12):
            yield Ask(near(i), "a")


def scenarios() -> list[Scenario]:
    """All scenarios. Every configuration here is correct, so no measured bound may exceed its claim."""
    return [*_votes(), *_labels(), *_indexes_and_owners(), *_analysts(), *_sums(), *_numbers()]


def _votes() -> list[Scenario]:
    once = replace(BASE, max_queries=6, sigma2=0.1)
    return [
        Scenario("one query", "all of B in one answer", once, asking(1), exact_noise=True, share=2),
        Scenario("votes", "until exhaustion, votes seen", BASE, asking(6)),
        Scenario("counts", "until exhaustion, counts and labels seen", replace(BASE, sigma2=8.0), asking(9), "counts"),
        Scenario("epsilon 1", "a smaller budget", replace(BASE, epsilon=1.0), asking(5)),
        Scenario("rdp", "the paper's filter", replace(BASE, accountant="rdp"), asking(6)),
        Scenario("exact noise", "the exact sampler end to end", BASE, asking(6), exact_noise=True),
        Scenario("crowd", "others near, who are exhausted too", BASE, asking(6, people=12)),
        Scenario("adaptive", "queries follow the answers; stop when sure", replace(BASE, sigma2=1.0), stopping),
        Scenario("bystander", "near no query", replace(BASE, sigma2=0.1), bystander),
    ]


def _labels() -> list[Scenario]:
    others, at_random = asking(4, people=8), asking(4, people=8, chosen=False)
    return [
        Scenario("labels, poisoned, queries chosen", "a tie broken by the target", LABELS, poisoned(4, True), "labels"),
        Scenario("labels, poisoned, queries natural", "ties, asked at random", LABELS, poisoned(4, False), "labels"),
        Scenario("labels, natural, queries chosen", "others as they come", LABELS, others, "labels"),
        Scenario("labels, natural, queries natural", "nothing chosen", LABELS, at_random, "labels"),
    ]


def _indexes_and_owners() -> list[Scenario]:
    owner = replace(BASE, max_queries=300)
    capped = replace(owner, max_records_per_query=2)
    reuse = replace(BASE, reuse="labels", free_repeats=True)
    lsh = replace(BASE, index="lsh", index_options={"n_tables": 8, "n_bits": 4, "seed": 3})
    sketch = replace(BASE, index="sketch", index_options={"n_bits": 128, "seed": 3})
    rbf = replace(BASE, kernel="rbf", normalize=False, classes=(0, 1, 2))
    return [
        Scenario("lsh", "hash tables", lsh, asking(6, people=4)),
        Scenario("sketch", "sketches", sketch, asking(6, people=4)),
        Scenario("rbf", "distances, three labels", rbf, asking(6)),
        Scenario("five records", "an owner with several records", owner, asking(4, 5, (1, 1, 0))),
        Scenario("capped records", "at most two of six records a query", capped, asking(5, 6)),
        Scenario("reuse", "released answers vote; repeats are free", reuse, asking(5, repeats=2)),
        Scenario("forget and return", "nothing is refunded", BASE, coming_and_going),
    ]


def _analysts() -> list[Scenario]:
    one = replace(BASE, reuse="labels")
    shared = replace(BASE, epsilon=3.0, global_epsilon=4.0)
    both, three = ("a", "b"), ("a", "b", "c")
    pooled, joint = (  # budgets of analysts add up, except for shared releases
        accounting.epsilon((2.0 - share) * BASE.budget, BASE.delta, BASE.accountant)
        for share in (0.0, ENDLESS.shared_budget / ENDLESS.budget)
    )
    return [
        Scenario("one analyst", "sees her own answers only", one, analysts(both, ("b",), 5)),
        Scenario("two analysts pool", "2B", BASE, analysts(both, both, 5), claimed_epsilon=pooled),
        Scenario("global budget", "three pool", shared, analysts(three, three, 3), claimed_epsilon=4.0),
        Scenario("model, one analyst", "the shared part and her own", ENDLESS, analysts(both, ("b",), 4), hurried=True),
        Scenario(
            "model, two analysts pool", "s·B + 2(1-s)·B", ENDLESS, analysts(both, both, 4), "votes", joint, hurried=True
        ),
        Scenario("model, house", "one analyst's queries shape what all see", ENDLESS, house, hurried=True, share=0.4),
    ]


def _sums() -> list[Scenario]:
    whole, rates = replace(MODEL, model_share=0.99), replace(ENDLESS, model_share=0.9)
    return [
        Scenario("model", "nearly all of B in gradients, a count and a card", whole, asking(1), share=0.6),
        Scenario("model, exact noise", "the exact sampler end to end", MODEL, asking(1), exact_noise=True, share=0.3),
        Scenario("model, five records", "one owner", whole, asking(1, 5, (1, 1, 0)), share=0.6),
        Scenario("model, crowd", "others train it too", whole, asking(1, people=12), share=0.6),
        *(
            Scenario(name, about, settings, script, hurried=True, share=0.6)
            for name, about, settings, script in (
                ("model and votes", "gradients, a card, votes", ENDLESS, asking(6, people=5)),
                ("newcomers", "the target joins after the first round", ENDLESS, joining_later),
                ("model, forget and return", "nothing is refunded", ENDLESS, coming_and_going),
                ("rounds", "trained again and again, three records", rates, rounds(3, 4)),
            )
        ),
    ]


def _numbers() -> list[Scenario]:
    """Labels 0 and 1 are the two bounds. The target says the upper one."""
    costly, both = replace(NUMBERS, sigma2=0.1), replace(NUMBERS_MODEL, sigma2=0.1)
    return [
        Scenario("numbers", "noisy sums of weights and of numbers", costly, asking(6)),
        Scenario("numbers, five records", "an owner with several records", costly, asking(4, 5, (1, 1, 0))),
        Scenario("numbers, model and residuals", "gradients, a card, votes", both, asking(6, people=5), hurried=True),
    ]

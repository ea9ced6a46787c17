"""The law of a store (rule 2), checked from outside against everything that was reported to have left it.

Answered implies durably charged; what was spent never falls; a retry gives the same bytes at one charge;
nobody exceeds their budget; the forgotten leave no trace. `Law.hear` takes reports, `Law.check` an open store.
"""

import shutil
import threading
import zlib
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from helpers.asking import declared
from indknn.core.quantise import quantise
from indknn.ledger import SHARED
from indknn.settings import Settings
from indknn.store import Store, filehome, journal
from indknn.store.journal import StoreJournal
from indknn.store.verify import problems

FEATURES = 8
OWNERS = 240
ANALYSTS = (None, "alice")
SCOPES = (*ANALYSTS, SHARED)
NUMBERS = {"classes": (), "target": "number", "bounds": (0.0, 12.0)}
KINDS = {
    "classes": {},
    "numbers, votes": {**NUMBERS, "mode": "votes"},
    "numbers, the shared model": {**NUMBERS, "mode": "model", "model_share": 0.5, "global_epsilon": None},
}
SIDE_FILES = ("", "-wal", "-head", "-shm", "-journal", ".lock", ".ballast")


@dataclass
class Findings:
    """How often each part of the law was broken."""

    uncharged: int = 0  # answered, and not on disk with its charge
    lost: int = 0  # spent before, and given back
    wrong_retries: int = 0  # another answer, or a second charge
    overspent: int = 0
    traces: int = 0
    unreadable: int = 0  # the store cannot be opened, or `verify` complains

    def __iadd__(self, other):
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        return self

    @property
    def total(self):
        return sum(getattr(self, f.name) for f in fields(self))


def settings(**changes):
    """Few features, a wide neighbourhood, and a budget that lasts for some thousand queries."""
    plain = {"n_features": FEATURES, "classes": ("a", "b", "c"), "epsilon": 4.0, "max_queries": 20_000, "tau": 0.3}
    return Settings(**{**plain, "reuse": "none", "global_epsilon": 5.0, **changes})


def rows(name, n):
    """The features that go with a name: the same in every process."""
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=(n, FEATURES))


def labels(name, n, store=None):
    """What the records say that go with a name: classes, or numbers if the store is about those."""
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    return (
        rng.uniform(*NUMBERS["bounds"], size=n)
        if store and store.settings.numeric
        else rng.choice(["a", "b", "c"], size=n)
    )


def add_owner(store, name, version=0, n=2):
    """Records of one owner, with ids. Another version has other features."""
    key = f"{name}/{version}"
    store.add(rows(key, n), labels(key, n, store), [name] * n, [f"{key}/{i}" for i in range(n)])


def new_store(path, owners=OWNERS, **changes):
    """A small real store with one record for each of some owners, closed."""
    with declared(Store.create(path, settings(**changes)), "alice") as store:
        names = [f"owner-{i:04d}" for i in range(owners)]
        said = [labels(n, 1, store)[0] for n in names]
        store.add(np.concatenate([rows(f"{n}/0", 1) for n in names]), said, names)
    return names


_local = threading.local()


def watch_debits():
    """From now on `paid()` tells what the answers computed in this thread cost, by owner and whether all see it."""
    note = StoreJournal.note
    if getattr(note, "watched", False):
        return

    def watched(self, analyst, query, label, release):
        bill = Counter()
        for slots, units in (self.ledger.log or {}).get(analyst, ()):
            for slot, amount in zip(slots.tolist(), units.tolist(), strict=True):
                bill[self.ledger.name_of(slot), analyst == SHARED] += amount
        _local.bill = getattr(_local, "bill", Counter()) + bill
        note(self, analyst, query, label, release)

    watched.watched = True
    StoreJournal.note = watched


def paid():
    bill, _local.bill = getattr(_local, "bill", Counter()), Counter()
    return dict(bill)


def ask(store, request, analyst, n, report):
    """One request, announced before and reported after it returned."""
    report(("asking", request, analyst, n))
    paid()
    answers = store.predict(rows(request, n), analyst, request_id=request)
    report(("answered", request, analyst, n, answers.tolist(), paid()))


def forget(store, name, report):
    report(("forgetting", name))
    store.forget([name])
    report(("forgot", name))


class Law:
    """What was reported, and whether a store agrees."""

    def __init__(self, names=()):
        self.names = set(names)
        self.versions = {name: [0] for name in names}
        self.asking = {}
        self.answered = {}
        self.owed = {analyst: Counter() for analyst in SCOPES}
        self.seen = {analyst: Counter() for analyst in SCOPES}
        self.forgetting, self.gone = set(), set()
        self.wrong = 0

    def copy(self):
        other = Law(self.names)
        other.__dict__.update({k: v.copy() if hasattr(v, "copy") else v for k, v in self.__dict__.items()})
        other.owed = {analyst: c.copy() for analyst, c in self.owed.items()}
        other.seen = {analyst: c.copy() for analyst, c in self.seen.items()}
        return other

    def hear(self, message):
        """Take one report."""
        kind, *rest = message
        if kind == "asking":
            self.asking[rest[0]] = (rest[1], rest[2])
        elif kind == "answered":
            request, analyst, n, answers, bill = rest
            self.asking.pop(request, None)
            known = self.answered.setdefault(request, (analyst, n, answers))
            self.wrong += known[2] != answers
            for (name, shared), units in bill.items():
                self.owed[SHARED if shared else analyst][name] += units
        elif kind == "adding":
            self.gone.discard(rest[0])
            self.forgetting.discard(rest[0])
            self.versions[rest[0]] = [*self.versions.get(rest[0], ()), rest[1]]
        elif kind == "added":
            self.names.add(rest[0])
        elif kind == "forgetting":
            self.forgetting.add(rest[0])
        elif kind == "forgot":
            self.forgetting.discard(rest[0])
            self.gone.add(rest[0])

    def check(self, store, *, retry=10):
        """Everything that the store, just opened, knows better than it should."""
        found = Findings(wrong_retries=self.wrong, unreadable=len(list(problems(store))))
        self._transcript(store, found)
        self._spent(store, found)
        before = self._balances(store)
        for request in list(self.answered)[-retry:]:
            analyst, n, answers = self.answered[request]
            again = store.predict(rows(request, n), analyst, request_id=request)
            found.wrong_retries += again.tolist() != answers
        found.wrong_retries += self._balances(store) != before
        return found

    def _transcript(self, store, found):
        scopes = dict(store.db.execute("SELECT id, name FROM scopes"))
        known = defaultdict(list)
        for scope, query, label in store.db.execute("SELECT scope, query, label FROM answers"):
            # Sums have no query. What is no number is a damaged row, in the control without syncs.
            if scope in scopes and isinstance(label, int) and label >= 0:
                known[scopes[scope], query].append(store.settings.target_.decode(np.array([label]))[0])
        for request, (analyst, n, answers) in self.answered.items():
            for values, answer in zip(quantise(rows(request, n)).values, answers, strict=True):
                stored = known["" if analyst is None else "=" + analyst, values.tobytes()]
                found.uncharged += answer not in stored
                found.wrong_retries += len(stored) > 1  # every request asks something new: one charge each

    def _spent(self, store, found):
        ledger, names = store.engine.ledger, sorted(self.names)
        known = [name for name in names if _known(ledger, name)]
        found.lost += len(names) - len(known)
        for analyst in SCOPES:
            for name, units in zip(known, ledger.spent(known, analyst).tolist(), strict=True):
                found.uncharged += units < self.owed[analyst][name]
                found.lost += units < self.seen[analyst][name]
                found.overspent += units > ledger.budget
                self.seen[analyst][name] = units
        if ledger.global_budget is not None:
            found.overspent += int((ledger.total_spent(known) > ledger.global_budget).sum())

    def _balances(self, store):
        names = [name for name in sorted(self.names) if _known(store.engine.ledger, name)]
        return [store.engine.ledger.spent(names, analyst).tolist() for analyst in SCOPES]

    def traces(self, path, *elsewhere):
        """How many of the forgotten still show in the bytes of the files."""
        text = b"".join(body_of(Path(f"{path}{end}")) for end in SIDE_FILES)
        text += b"".join(body_of(Path(file)) for file in elsewhere)
        return sum(any(mark in text for mark in self.marks(name)) for name in self.gone)

    def marks(self, name):
        """What tells of an owner: the name, and the features of every version of their records."""
        yield name.encode()
        for version in self.versions[name]:
            yield from (values.tobytes() for values in quantise(rows(f"{name}/{version}", 2)).values)


def copy_all(path, copy):
    """Copy a store with everything beside it that holds its contents, as a process that dies now would leave it."""
    for end in SIDE_FILES[:3]:
        Path(f"{copy}{end}").unlink(missing_ok=True)
        if Path(f"{path}{end}").exists():
            shutil.copy(f"{path}{end}", f"{copy}{end}")


def body_of(file):
    return file.read_bytes() if file.exists() else b""


REAL_FILL, REAL_SPARE = filehome.Ballast.fill, filehome._SPARE


def no_ballast():
    """Images are opened by the thousand, and the ballast plays no part in them."""
    filehome.Ballast.fill = lambda self, need: None


@contextmanager
def early_folds(wanted=True):
    """Batches are written as balances rather than debits even where they are as small as in these tests."""
    before = journal._MANY, journal._BALANCE
    if wanted:
        journal._MANY, journal._BALANCE = 0, 1
    try:
        yield
    finally:
        journal._MANY, journal._BALANCE = before


def _known(ledger, name):
    try:
        return bool(len(ledger.slots_of([name])))
    except ValueError:
        return False

"""Every ε, B, "spent" and "left" that is printed, with the observer for whom it holds (rule 15).

The estimator, the command line, the HTTP service, the console, receipts and exports all take their figures from here.
There are two kinds of observers:

- **One analyst** sees the answers to one analyst, and what every analyst sees (the shared model). The analyst's own
  ledger and the shared one count. If the unnamed analyst's queries shaped what all see, that analyst's ledger counts
  too. With a global ledger, the queries of others decide who is exhausted, so only the global bound is proven for one
  analyst (rule 11).
- **All analysts together** see all answers. The sum over all ledgers counts. Only a global ledger bounds it.

An owner sees their own figures, rounded up to 1/50 of B. The exact figures would reveal the K of other people's queries
(rule 8). Exact figures, and figures about more than one person, are only for the curator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from typing import Any, Protocol

import numpy as np

from indknn.core import accounting
from indknn.core.mechanism import charge_units
from indknn.ledger.memory import MemoryLedger
from indknn.settings import Settings
from indknn.types import SHARED, Accountant, FloatArray, IntArray, OwnerId, Scope

ONE = "one analyst"
TOGETHER = "all analysts together"
STEPS = 50
"""An owner is told a whole number of B/STEPS (rule 8)."""
_BINS = 10
_NO_BOUND = (
    "No epsilon is promised: people spent budget here both with and without a global epsilon. Use a new object, and "
    "add up what both promise."
)


class Ledgers(Protocol):
    """Settings and people. `earlier` are settings under which these people spent something."""

    settings: Settings
    earlier: tuple[Settings, ...]
    ledger: MemoryLedger


class Served(Ledgers, Protocol):
    """The engine: settings, people and records."""

    shard: Any


@dataclass(frozen=True)
class Promise:
    """How much an observer can learn at most about any one person. None: there is no bound."""

    observer: str
    epsilon: float | None
    delta: float
    filter: Accountant
    budget: float | None


@dataclass(frozen=True)
class Account(Promise):
    """The same, with what a person has spent so far."""

    spent: float
    left: float | None
    epsilon_so_far: float | None
    """None: too large to compute."""


def promise(settings: Settings, observer: str, earlier: Sequence[Settings] = ()) -> Promise:
    """The promise that holds for an observer.

    If people spent something under `earlier` settings, nobody has spent more than the largest of the budgets. But where
    only some of the settings had a global ledger, nothing bounds what one analyst learns through the others.
    """
    every = (settings, *earlier)
    budgets = [one.global_budget for one in every]
    if observer == ONE and not any(budgets):
        budgets = [one.budget for one in every]
    budget = None if None in budgets else max(one or 0.0 for one in budgets)
    epsilon: float | None = settings.global_epsilon or settings.epsilon
    if budget != budgets[0]:
        epsilon = None if budget is None else epsilon_of(budget, settings.delta, settings.accountant)
    return Promise(observer, epsilon if budget else None, settings.delta, settings.accountant, budget)


def guarantee(settings: Settings, analyst: str | None = None, earlier: Sequence[Settings] = ()) -> dict[str, Any]:
    """The promise in numbers and in words. It is public. With a global ledger it holds for all analysts together.

    For an analyst who was given less, it is their own promise. `earlier` is as for `promise`.
    """
    advised, less, settings = settings.advised, analyst in settings.analysts, settings.seen_by(analyst)
    apart = advised and not settings.advised
    together = settings.global_budget is not None
    found = promise(settings, TOGETHER if together else ONE, earlier)
    if found.epsilon is None:
        return {**asdict(found), "words": _NO_BOUND}
    who = f"analyst {analyst!r} asks" if less else "one analyst asks"
    who = "analysts ask, alone or all together" if together else who
    words = (
        f"Whatever {who}, the answers would be almost the same if any one person's records had never been here: within "
        f"epsilon = {found.epsilon:g}, except with probability delta = {found.delta:g} (by the filter {found.filter})."
    )
    rest = "" if together else " Analysts who pool their answers are not bounded together."
    if apart:
        rest += " This analyst sees nothing of the shared model, which may cost more than that: votes alone answer."
    return {**asdict(found), "words": words + rest + given_less_words(settings)}


def given_less_words(settings: Settings) -> str:
    """How many analysts were given less, and how much. This is public. It does not say who they are.

    >>> given_less_words(Settings(2, ("no", "yes"), reuse="none", analysts={"alice": 0.25, "bob": 0.5}))
    ' 2 analysts are told less: within epsilon = 0.25, 0.5.'
    """
    given = sorted(settings.analysts.values())
    if not given:
        return ""
    who = "One analyst is" if len(given) == 1 else f"{len(given)} analysts are"
    return f" {who} told less: within epsilon = {', '.join(f'{epsilon:g}' for epsilon in given)}."


def ledger_words(settings: Settings, analyst: str | None) -> str:
    """Words that say which ledger an estimate for one analyst is about."""
    settings = settings.seen_by(analyst)
    who = "the analyst without a name" if analyst is None else f"analyst {analyst!r}"
    rest = ""
    if settings.global_budget is not None:
        rest = f"; the global one, {settings.global_budget:.6g}, may end earlier, as others spend from it too"
    shared = settings.shared_budget
    part = f" beside {shared:.6g} for the shared model" if shared else ""
    return f"the ledger of {who}, {settings.budget - shared:.6g}{part}, B = {settings.budget:.6g}{rest}"


def by_observer(ledger: MemoryLedger, spent: dict[Scope, IntArray]) -> dict[str, IntArray]:
    """What counts for each observer, given what people have spent in each scope, in ledger units."""
    nothing = np.zeros_like(next(iter(spent.values())))
    shared, unnamed = spent.get(SHARED, nothing), spent.get(None, nothing)
    named = {scope: units for scope, units in spent.items() if scope not in (None, SHARED)}
    apart = [units for scope, units in named.items() if ledger.apart(scope)]  # they see nothing that is shared
    seeing = [units for scope, units in named.items() if not ledger.apart(scope)]
    one = np.max([shared + np.max([unnamed, *seeing], axis=0), *apart], axis=0)
    together = _sum([shared, unnamed, *named.values()])
    joint = ledger.house or ledger.global_budget is not None
    return {ONE: together if joint else one, TOGETHER: together}


def _sum(parts: list[IntArray]) -> IntArray:
    """The sum, without overflow for hundreds of analysts."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total = np.minimum(total + part, accounting.MAX_UNITS)
    return total


def account(
    settings: Settings, observer: str, units: int, *, rounded: bool, earlier: Sequence[Settings] = ()
) -> Account:
    """What a person has spent so far: exact for the curator, rounded up for the person.

    >>> settings = Settings(n_features=2, classes=("no", "yes"))
    >>> third = accounting.to_units(settings.budget) // 3
    >>> round(account(settings, ONE, third, rounded=True).spent / settings.budget, 6)
    0.34
    """
    bound, spent = promise(settings, observer, earlier), float(accounting.from_units(units))
    within = bound.budget is not None and spent <= bound.budget  # false if the budget was lowered after it was spent
    if rounded:
        spent = -(-units * STEPS // accounting.to_units(settings.budget)) * settings.budget / STEPS
    if within:
        spent = min(spent, bound.budget or inf)
    so_far = epsilon_of(spent, bound.delta, bound.filter)
    if within and so_far is not None:
        so_far = min(so_far, bound.epsilon or inf)
    now = promise(settings, observer).budget
    left = None if now is None else max(now - spent, 0.0)
    return Account(**vars(bound), spent=spent, left=left, epsilon_so_far=so_far)


def statement(engine: Served, owner: OwnerId) -> dict[str, Any]:
    """What a person may see about themselves.

    It leaves out in how many answers they took part, because that would count queries.
    """
    ledger, settings, earlier = engine.ledger, engine.settings, engine.earlier
    with ledger.lock:
        records = engine.shard.slots_of_owners([owner])
        spent = by_observer(ledger, ledger.spent_by_scope(owner))
    one, together = (
        asdict(account(settings, who, int(units[0]), rounded=True, earlier=earlier)) for who, units in spent.items()
    )
    rounding = f"spent is rounded up to a whole 1/{STEPS} of B = {settings.budget:.6g}"
    return {
        "owner": str(owner),
        "records": len(records),
        "one_analyst": one,
        "together": together,
        "rounding": rounding,
        "words": guarantee(settings, earlier=earlier)["words"],
    }


def exact(engine: Ledgers) -> Iterator[dict[str, Any]]:
    """The exact spending of every person who has records, by observer and by analyst. Only for the curator."""
    ledger = engine.ledger
    with ledger.lock:
        names, table = ledger.owners(), {scope: ledger.column(scope)[ledger.taken()] for scope in ledger.scopes}
        queries = ledger.participation[ledger.taken()].tolist()
    found = {who: accounting.from_units(units).tolist() for who, units in by_observer(ledger, table).items()}
    one, together = (promise(engine.settings, who, engine.earlier).budget for who in (ONE, TOGETHER))
    for i, name in enumerate(names):
        own = {scope or "": units[i] for scope, units in table.items() if units[i] and scope != SHARED}
        yield {
            "owner": name,
            "queries": queries[i],
            "one_analyst": {"observer": ONE, "spent": found[ONE][i], "budget": one},
            "together": {"observer": TOGETHER, "spent": found[TOGETHER][i], "budget": together},
            "shared": float(accounting.from_units(table[SHARED][i])) if SHARED in table else 0.0,
            "by_analyst": {name: float(accounting.from_units(units)) for name, units in own.items()},
        }


def status(engine: Ledgers, answers: int) -> dict[str, Any]:
    """The curator's view of all people. `answers` is how many answers were given."""
    settings, ledger = engine.settings, engine.ledger
    with ledger.lock:
        taken, scopes = ledger.taken(), ledger.scopes
        table = {scope: ledger.column(scope)[taken] for scope in scopes}
        graves = {
            scope: np.array([t.spent.get(scope, 0) for t in ledger.tombstones.values()], np.int64) for scope in scopes
        }
        asking = [scope for scope in scopes if scope != SHARED]
        out = [ledger.remaining(taken, scope) < _least_price(settings, ledger, scope) for scope in asking]
    here, gone = by_observer(ledger, table), by_observer(ledger, graves)
    most = {who: int(max(here[who].max(initial=0), gone[who].max(initial=0))) for who in here}
    one, together = (asdict(account(settings, who, units, rounded=False)) for who, units in most.items())
    share = np.asarray(accounting.from_units(here[ONE])) / (promise(settings, ONE).budget or inf)
    votes = {scope: units for scope, units in table.items() if scope != SHARED}
    used = [np.asarray(np.max([units / ledger.limit(scope) for scope, units in votes.items()], axis=0))]
    if settings.global_budget is not None:
        used.append(accounting.from_units(_sum(list(votes.values()))) / settings.global_budget)
    return {
        "guarantee": guarantee(settings),
        "one_analyst": one,
        "together": together,
        "whose": "of whoever has spent most, forgotten or not",
        "spent_share_histogram": np.histogram(share, bins=_BINS, range=(0.0, 1.0))[0].tolist(),
        "spent_share_median": float(np.median(share)) if len(share) else 0.0,
        "exhausted": int(np.any(out, axis=0).sum()),
        "given_less": {name: promise(settings.seen_by(name), ONE).epsilon for name in sorted(settings.analysts)},
        "forecast": {
            "observer": TOGETHER,
            "queries_left_for_median_owner": min(
                (left for left in (_left(answers, each) for each in used) if left is not None), default=None
            ),
        },
    }


def _least_price(settings: Settings, ledger: MemoryLedger, analyst: Scope) -> int:
    """A person who has less than this left no longer takes part."""
    if settings.advised:  # with rare counts, only a person with almost nothing left is out
        return ledger.limit(analyst) // 100
    scale = settings.seen_by(analyst).plan(settings.tau or 1.0).scale1
    return int(charge_units(np.array([float(1 << 40)]), scale)[0])


def _left(answers: int, share: FloatArray) -> int | None:
    """For how many more queries a kind of ledger lasts for the median person, if analysts go on as before."""
    median = float(np.median(share)) if len(share) else 0.0
    return round(answers * (1.0 - median) / median) if median > 0 else None


@lru_cache(maxsize=1024)
def epsilon_of(spent: float, delta: float, accountant: Accountant) -> float | None:
    """The ε of what was spent. None if it is too large to compute."""
    return accounting.epsilon(spent, delta, accountant) if spent < accounting.MAX_BUDGET else None

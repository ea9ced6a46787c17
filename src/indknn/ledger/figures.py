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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from math import ceil, inf
from typing import Any, Protocol

import numpy as np

from indknn.core import accounting, clock
from indknn.core.mechanism import charge_units
from indknn.ledger.memory import MemoryLedger, earlier_scope, sum_of
from indknn.ledger.promises import STEPS
from indknn.settings import Settings
from indknn.types import SHARED, Accountant, FloatArray, IntArray, OwnerId, Scope

ONE = "one analyst"
TOGETHER = "all analysts together"
MODEL = "whoever sees the shared model alone"
_OBSERVERS = {"one_analyst": ONE, "together": TOGETHER}
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
    budgets = [each.global_budget for each in every]
    if observer == ONE and not any(budgets):
        budgets = [each.budget for each in every]
    budget = None if None in budgets else max(bound or 0.0 for bound in budgets)
    epsilon: float | None = settings.global_epsilon or settings.epsilon
    if budget != budgets[0]:
        epsilon = None if budget is None else epsilon_of(budget, settings.delta, settings.accountant)
    return Promise(observer, epsilon if budget else None, settings.delta, settings.accountant, budget)


def guarantee(
    settings: Settings, analyst: str | None = None, earlier: Sequence[Settings] = (), periods: int = 1
) -> dict[str, Any]:
    """The promise in numbers and in words. It is public. With a global ledger it holds for all analysts together.

    For an analyst who was given less, it is their own promise. `earlier` is as for `promise`. If budgets are renewed,
    it is for each period, and `periods` have begun.
    """
    advised, less, settings = settings.advised, analyst in settings.analysts, settings.seen_by(analyst)
    apart = advised and not settings.advised
    together = settings.global_budget is not None
    found = promise(settings, TOGETHER if together else ONE, earlier)
    if found.epsilon is None:
        return {**asdict(found), "words": _NO_BOUND, "periods": None}
    who = f"analyst {analyst!r} asks" if less else "one analyst asks"
    who = "analysts ask, alone or all together" if together else who
    words = (
        f"Whatever {who}, the answers would be almost the same if any one person's records had never been here: within "
        f"epsilon = {found.epsilon:g}, except with probability delta = {found.delta:g} (by the filter {found.filter})."
    )
    rest = "" if together else " Analysts who pool their answers are not bounded together."
    if apart:
        rest += " This analyst sees nothing of the shared model, which may cost more than that: votes alone answer."
    over_time = in_periods(settings, found, periods)
    if over_time["periods"]:
        rest += " " + over_time["periods"]["words"]
    return {**asdict(found), "words": words + rest + given_less_words(settings), **over_time}


def in_periods(settings: Settings, found: Promise, periods: int) -> dict[str, Any]:
    """What is true of all periods so far, if budgets are renewed. It is public."""
    if settings.renew_days is None:
        return {"periods": None}
    days, over_all = settings.renew_days, _times(found, periods).epsilon
    above = "too large to compute" if over_all is None else f"{over_all:.4g}"
    words = f"epsilon = {found.epsilon:g} is for each period of {days} days. Over all {periods} so far it is {above}."
    return {"periods": {"begun": periods, "days": days, "epsilon_over_all": over_all, "words": words}}


def _times(bound: Promise, periods: int) -> Promise:
    """What a bound for each period means for some of them together."""
    if periods == 1 or bound.budget is None:
        return bound
    budget = periods * bound.budget
    return replace(bound, budget=budget, epsilon=epsilon_of(budget, bound.delta, bound.filter))


def time_words(settings: Settings, share: float) -> str:
    """How budgets depend on time. `share` is the share of their part that votes may have used by now."""
    paced, renewed = settings.pace_days, settings.renew_days
    words = "" if paced is None else f"; evenly over {paced} days, {share:.0%} of it by now"
    return words if renewed is None else f"{words}; in each period of {renewed} days"


def over_time(settings: Settings, ledger: MemoryLedger) -> dict[str, Any] | None:
    """How budgets depend on the clock, and which period this is. It is public. None if they do not depend on it."""
    paced, renewed = settings.pace_days, settings.renew_days
    if paced is None and renewed is None:
        return None
    facts: dict[str, Any] = {"pace_days": paced, "renew_days": renewed}
    if renewed is not None:
        begins = _as_text(ledger.born + (ledger.period + 1) * ledger.renewal)
        facts |= {"period": ledger.period + 1, "next_begins": begins}
    if paced is not None:
        part, steps = ledger.paced_at(max(ledger.minute, clock.minute()))
        facts["by_now"] = part / steps
    return facts


def _as_text(minute: int) -> str:
    return datetime.fromtimestamp(60 * minute, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def training_words(settings: Settings) -> str:
    """What training the shared model costs a person at most, now and later together. It is public.

    >>> training_words(Settings(2, ("no", "yes")))
    'training the shared model, once for all analysts: each person pays for their own part, at most 90% of B'
    """
    once = "training the shared model, once for all analysts"
    return f"{once}: each person pays for their own part, at most {settings.model_share:.0%} of B"


def given_less_words(settings: Settings) -> str:
    """How many analysts were given less, and how much. This is public. It does not say who they are.

    >>> given_less_words(Settings(2, ("no", "yes"), reuse="none", analysts={"alice": 0.25, "bob": 0.5}))
    ' 2 analysts are told less: within epsilon = 0.25, 0.5.'
    """
    limits = sorted(settings.analysts.values())
    if not limits:
        return ""
    who = "One analyst is" if len(limits) == 1 else f"{len(limits)} analysts are"
    return f" {who} told less: within epsilon = {', '.join(f'{epsilon:g}' for epsilon in limits)}."


def model_promise(engine: Ledgers) -> Promise:
    """The promise for everybody who sees the shared model and no answers: it is within the shared budget.

    If queries shaped the model, or may have decided who was exhausted when it was trained, the whole budget counts. If
    budgets are renewed, it counts for every period so far.
    """
    settings, earlier = engine.settings, engine.earlier
    every = (settings, *earlier)
    if engine.ledger.joint or any(one.global_budget is not None for one in every):
        return _times(replace(promise(settings, ONE, earlier), observer=MODEL), engine.ledger.period + 1)
    budget = max(one.shared_budget for one in every)
    epsilon = epsilon_of(budget, settings.delta, settings.accountant)
    return _times(Promise(MODEL, epsilon, settings.delta, settings.accountant, budget), engine.ledger.period + 1)


def ledger_words(settings: Settings, analyst: str | None, share: float = 1.0) -> str:
    """Words that say which ledger an estimate for one analyst is about. `share` is as for `time_words`."""
    settings = settings.seen_by(analyst)
    who = "the analyst without a name" if analyst is None else f"analyst {analyst!r}"
    rest = ""
    if settings.global_budget is not None:
        rest = f"; the global one, {settings.global_budget:.6g}, may end earlier, as others spend from it too"
    shared = settings.shared_budget
    part = f" beside {shared:.6g} for the shared model" if shared else ""
    rest += time_words(settings, share)
    return f"the ledger of {who}, {settings.budget - shared:.6g}{part}, B = {settings.budget:.6g}{rest}"


def by_observer(ledger: MemoryLedger, spent: dict[Scope, IntArray]) -> dict[str, IntArray]:
    """What counts for each observer, given what people have spent in each scope, in ledger units."""
    return dict(zip((ONE, TOGETHER), ledger.observed(spent), strict=True))


def account(
    settings: Settings,
    observer: str,
    units: int,
    *,
    rounded: bool,
    earlier: Sequence[Settings] = (),
    own: tuple[float, int, int, int] | None = None,
    periods: int = 1,
    closed: int = 0,
) -> Account:
    """What a person has spent so far: exact for the curator, rounded up for the person.

    `own` is their own promise, if they have one: ε, `whole`, `before` and `over` (`promises.PROMISE`). Whoever had
    spent more before is promised that, rounded up. With `periods`, it is about so many of them, and `closed` is what
    the person has spent in those that are over. What is rounded is decided from rounded figures alone. Otherwise a
    person could lower their promise bit by bit, to see when it is less than what they have spent (rule 8).

    >>> settings = Settings(n_features=2, classes=("no", "yes"))
    >>> third = accounting.to_units(settings.budget) // 3
    >>> round(account(settings, ONE, third, rounded=True).spent / settings.budget, 6)
    0.34
    """
    bound, now = (
        _own(settings, _times(promise(settings, observer, others), periods), own, periods) for others in (earlier, ())
    )
    if rounded:
        more = closed > 0  # then two figures are rounded up
        steps = _steps(settings, units) + (_steps(settings, closed) if more else 0)
        spent = steps * settings.budget / STEPS
        within = bound.budget is not None and steps <= ceil(bound.budget / settings.budget * STEPS - 1e-9) + more
    else:
        spent = float(accounting.from_units(units + closed))
        within = bound.budget is not None and spent <= bound.budget  # false if it was lowered after it was spent
    if within:
        spent = min(spent, bound.budget or inf)
    so_far = epsilon_of(spent, bound.delta, bound.filter)
    if within and so_far is not None:
        so_far = min(so_far, bound.epsilon or inf)
    left = None if now.budget is None else max(now.budget - spent, 0.0)
    return Account(**vars(bound), spent=spent, left=left, epsilon_so_far=so_far)


def _steps(settings: Settings, units: int) -> int:
    """So many times 1/STEPS of B, rounded up."""
    return -(-units * STEPS // accounting.to_units(settings.budget))


def _own(settings: Settings, bound: Promise, own: tuple[float, int, int, int] | None, periods: int) -> Promise:
    """The bound for a person with a promise of their own, as for `account`."""
    if own is None or bound.budget is None:
        return bound
    epsilon, whole, before, over = own
    mine = float(accounting.from_units(whole))
    budget = max(mine, _steps(settings, before) * settings.budget / STEPS)
    if periods > 1:
        budget += float(accounting.from_units(over))
    if budget >= bound.budget:
        return bound
    as_asked = budget == mine
    return replace(bound, budget=budget, epsilon=epsilon if as_asked else epsilon_of(budget, bound.delta, bound.filter))


def own_words(found: Mapping[str, Any], renew_days: int | None) -> str:
    """A person's own promise in words, from their account with one analyst, or with all if that is what is bounded."""
    each = "" if renew_days is None else f", in each period of {renew_days} days"
    return f"your promise: epsilon = {found['epsilon']:g}, except with probability delta = {found['delta']:g}{each}"


def statement(engine: Served, owner: OwnerId) -> dict[str, Any]:
    """What a person may see about themselves.

    It leaves out in how many answers they took part, because that would count queries.
    """
    ledger, settings, earlier = engine.ledger, engine.settings, engine.earlier
    with ledger.lock:
        ledger.tick()  # otherwise the number of records would show whether anybody asked since some expired
        records = engine.shard.slots_of_owners([owner])
        records = records[engine.shard.unexpired(records)]
        spent = by_observer(ledger, ledger.spent_by_scope(owner))
        over = {}
        if settings.renew_days is not None:
            over = by_observer(ledger, {scope: ledger.spent([owner], earlier_scope(scope)) for scope in ledger.scopes})
        ((epsilon, whole, _, *rest),) = ledger.promises_of([owner]).tolist()
    own = (epsilon, whole, *rest) if whole else None
    shown = partial(account, settings, rounded=True, earlier=earlier, own=own)
    accounts = {key: asdict(shown(who, int(spent[who][0]))) for key, who in _OBSERVERS.items()}
    one, periods = accounts["one_analyst"], ledger.period + 1
    over_all = {
        key: asdict(shown(who, int(spent[who][0]), periods=periods, closed=int(over[who][0])))
        for key, who in _OBSERVERS.items()
        if over
    }
    rounding = f"spent is rounded up to a whole 1/{STEPS} of B = {settings.budget:.6g}"
    return {
        "owner": str(owner),
        "records": len(records),
        **accounts,
        "rounding": rounding,
        **({} if own is None or one["epsilon"] is None else {"promise": own_words(one, settings.renew_days)}),
        "words": ("" if own is None else "To everybody here: ")
        + guarantee(settings, earlier=earlier, periods=periods)["words"],
        **_in_all(settings, periods, over_all),
    }


def _in_all(settings: Settings, periods: int, accounts: dict[str, Any]) -> dict[str, Any]:
    """Accounts over all periods so far, if budgets are renewed."""
    if settings.renew_days is None:
        return {"over_all_periods": None}
    return {"over_all_periods": {"begun": periods, "days": settings.renew_days, **accounts}}


def added_up(statements: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The statements of one person in several stores, by the names of the stores, as one: what was spent adds up.

    Budgets add up too. The sum of `gdp` budgets is one. A `gdp` budget is also an `rdp` budget of the same size, so a
    sum of both kinds is `rdp`. The smallest δ of the stores holds for all of it. Where budgets are renewed, all periods
    so far count; what is left is left in this one.
    """
    renewed = {name: one["over_all_periods"] for name, one in statements.items() if one["over_all_periods"]}
    accounts = {}
    for who, observer in _OBSERVERS.items():
        each = [{**renewed.get(name, one)[who], "left": one[who]["left"]} for name, one in statements.items()]
        delta, kinds = min(one["delta"] for one in each), {one["filter"] for one in each}
        filter_: Accountant = "gdp" if kinds == {"gdp"} else "rdp"
        budget, left = (
            None if any(one[name] is None for one in each) else sum(one[name] for one in each)
            for name in ("budget", "left")
        )
        spent = sum(one["spent"] for one in each)
        epsilon = None if budget is None else epsilon_of(budget, delta, filter_)
        so_far = epsilon_of(spent, delta, filter_)
        accounts[who] = asdict(Account(observer, epsilon, delta, filter_, budget, spent, left, so_far))
    words = "What was spent in these stores adds up, for an analyst who asks in all of them, and for all together."
    for name in sorted(renewed):
        begun, days = renewed[name]["begun"], renewed[name]["days"]
        words += f" In {name} budgets are renewed every {days} days: this is about all {begun} periods so far."
    return {"stores": sorted(statements), **accounts, "words": words}


def exact(engine: Ledgers) -> Iterator[dict[str, Any]]:
    """The exact spending of every person who has records, by observer and by analyst. Only for the curator."""
    ledger = engine.ledger
    with ledger.lock:
        names, table = ledger.owners(), {scope: ledger.column(scope)[ledger.taken()] for scope in ledger.scopes}
        queries = ledger.participation[ledger.taken()].tolist()
        promises = ledger.promises_of(names).tolist()
    found = {who: accounting.from_units(units).tolist() for who, units in by_observer(ledger, table).items()}
    budgets = {who: promise(engine.settings, who, engine.earlier).budget for who in (ONE, TOGETHER)}
    for i, name in enumerate(names):
        epsilon, whole, *_ = promises[i]
        both = {}
        for key, who in _OBSERVERS.items():
            spent, budget = found[who][i], budgets[who]
            if whole and budget is not None:
                budget = max(min(budget, float(accounting.from_units(whole))), spent)
            both[key] = {"observer": who, "spent": spent, "budget": budget}
        own = {scope or "": units[i] for scope, units in table.items() if units[i] and scope != SHARED}
        yield {
            "owner": name,
            "queries": queries[i],
            **both,
            **({"epsilon": epsilon} if whole else {}),
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
        limits = {scope: np.maximum(ledger.bounds(taken, scope, in_time=False)[0], 1) for scope in asking}
        out = [ledger.remaining(taken, one) < _least_price(settings, limits[one], one) for one in asking]
        own = ledger.promises["whole"][taken] if len(ledger.promises) else np.zeros(len(taken), np.int64)
    here, gone = by_observer(ledger, table), by_observer(ledger, graves)
    most = {who: int(max(here[who].max(initial=0), gone[who].max(initial=0))) for who in here}
    accounts = {key: asdict(account(settings, who, most[who], rounded=False)) for key, who in _OBSERVERS.items()}
    periods = ledger.period + 1
    whole = accounting.to_units(promise(settings, ONE).budget or 0.0)
    share = here[ONE] / np.where(own > 0, np.minimum(own, whole), max(whole, 1))
    votes = {scope: units for scope, units in table.items() if scope != SHARED}
    used = [np.asarray(np.max([np.minimum(units / limits[scope], 1.0) for scope, units in votes.items()], axis=0))]
    if settings.global_budget is not None:
        used.append(accounting.from_units(sum_of(list(votes.values()))) / settings.global_budget)
    return {
        "guarantee": guarantee(settings, periods=periods),
        "time": over_time(settings, ledger),
        **_in_all(settings, periods, _most_in_all(settings, ledger, periods)),
        **accounts,
        "whose": "of whoever has spent most, forgotten or not",
        "spent_share_histogram": np.histogram(share, bins=_BINS, range=(0.0, 1.0))[0].tolist(),
        "spent_share_median": float(np.median(share)) if len(share) else 0.0,
        "exhausted": int(np.any(out, axis=0).sum()),
        "own_promises": int((own > 0).sum()),
        "given_less": {name: promise(settings.seen_by(name), ONE).epsilon for name in sorted(settings.analysts)},
        "forecast": _forecast(answers, used),
    }


def _most_in_all(settings: Settings, ledger: MemoryLedger, periods: int) -> dict[str, Any]:
    """What whoever has spent most has spent in all periods so far, forgotten or not."""
    with ledger.lock:
        table = {scope: ledger.column_in_all(scope) for scope in ledger.scopes}
    most = {who: int(units.max(initial=0)) for who, units in by_observer(ledger, table).items()}
    of = partial(account, settings, rounded=False, periods=periods)
    return {key: asdict(of(who, most[who])) for key, who in _OBSERVERS.items()}


def _least_price(settings: Settings, limits: IntArray, analyst: Scope) -> IntArray | int:
    """A person who has less than this left no longer takes part. `limits` is what people may spend with them."""
    if settings.advised:  # with rare counts, only a person with almost nothing left is out
        return limits // 100
    scale = settings.seen_by(analyst).plan(settings.tau or 1.0).scale1
    return int(charge_units(np.array([float(1 << 40)]), scale)[0])


def _forecast(answers: int, shares: Sequence[FloatArray]) -> dict[str, Any]:
    """For how many more queries the ledgers last for the average person, if analysts go on as before.

    `shares` are the shares spent of each kind of ledger. The shared model's ledger is not among them: queries do not
    spend from it. The average counts, because the shared model answers most queries, and few people are asked.
    """
    spent = max((float(np.mean(share)) for share in shares if len(share)), default=0.0)
    left, words, why = None, "not known", "before the first answer"
    if answers and spent > 0.0:
        left, why = round(answers * (1.0 - spent) / spent), "for the average owner, if all analysts go on as so far"
        words = f"about {left:,}" if left else "none"
    elif answers:
        words, why = "no end in sight", "nobody was charged for single answers so far"
    return {"observer": TOGETHER, "queries_left_for_average_owner": left, "words": words, "why": why}


@lru_cache(maxsize=1024)
def epsilon_of(spent: float, delta: float, accountant: Accountant) -> float | None:
    """The ε of what was spent. None if it is too large to compute."""
    return accounting.epsilon(spent, delta, accountant) if spent < accounting.MAX_BUDGET else None

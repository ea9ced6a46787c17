"""What a store tells its curator, and a person about themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from indknn.core import accounting
from indknn.core.inputs import as_owner_list
from indknn.core.mechanism import charge_units
from indknn.ledger import Scope
from indknn.store.store import Store

_BINS = 10


def statement(store: Store, owner: Any) -> dict[str, Any]:
    """A person's own statement: what was spent, on how many queries, and what is promised."""
    (owner,) = as_owner_list([owner])
    engine, settings = store.engine, store.settings
    ledger = engine.ledger
    with engine.shard.lock:
        (queries,) = ledger.queries([owner])
        records = engine.shard.slots_of_owners([owner])
        rho = {scope: float(accounting.from_units(ledger.spent([owner], scope))[0]) for scope in ledger.scopes}
    return {
        "owner": owner,
        "records": len(records),
        "queries": int(queries),
        "rho": sum(rho.values()),
        "rho_by_analyst": {scope or "": value for scope, value in rho.items() if value},
        "budget_per_analyst": settings.budget,
        "epsilon_promised": settings.epsilon,
        "epsilon_so_far": accounting.epsilon(max(rho.values()), settings.delta, settings.accountant),
        "delta": settings.delta,
        "filter": settings.accountant,
    }


def status(store: Store) -> dict[str, Any]:
    """The curator's view. Not for those who query: it depends on individual budgets."""
    engine, settings = store.engine, store.settings
    ledger = engine.ledger
    with engine.shard.lock:
        owners = ledger.taken()
        largest = np.max([ledger.column(scope)[owners] for scope in ledger.scopes], axis=0)
        records = len(engine.shard)
    share = accounting.from_units(largest) / settings.budget
    with store.reading() as db:
        answers = int(db.execute("SELECT count(*) FROM answers WHERE label >= 0").get)
    price = charge_units(np.array([float(1 << 40)]), settings.plan(settings.tau or 1.0).scale1)
    median = float(np.median(share)) if len(share) else 0.0
    paid = median - (settings.prior_share if settings.prior == "statistics" else 0.0)
    if settings.advised:  # where counts are rare, one with next to nothing left is out
        price = np.array([ledger.budget // 100])
    return {
        "store": str(store.path),
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "filter": settings.accountant,
        "budget": settings.budget,
        "tau": settings.tau,
        "records": records,
        "owners": len(owners),
        "forgotten": len(ledger.tombstones),
        "answers": answers,
        "analysts": [scope or "" for scope in ledger.scopes],
        "spent_share_histogram": np.histogram(share, bins=_BINS, range=(0.0, 1.0))[0].tolist(),
        "spent_share_median": median,
        "exhausted": int((ledger.budget - largest < price).sum()),
        # at the pace so far, which only those queries tell of; statistics were paid for once, before them
        "queries_left_for_median_owner": round(answers * (1.0 - median) / paid) if paid > 0 else None,
    }


def answers_by_analyst(store: Store) -> dict[Scope, int]:
    """How many answers each analyst was given, ever."""
    # A sum over records has no query, and still has none where it was purged.
    query = "SELECT name, count(*) FROM answers JOIN scopes ON scope = id WHERE length(query) > 0 GROUP BY scope"
    with store.reading() as db:
        return {name[1:] or None: int(count) for name, count in db.execute(query)}

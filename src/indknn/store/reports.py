"""What the file of a store tells its curator, besides the figures of `indknn.ledger.figures`."""

from __future__ import annotations

from typing import Any

from indknn.ledger import SHARED, Scope, figures
from indknn.store.store import Store


def status(store: Store, answers: int | None = None) -> dict[str, Any]:
    """The curator's view. Not for those who query: it depends on individual budgets.

    Whoever knows how many `answers` were given spares the store from counting them.
    """
    with store.reading():
        answers = sum(answers_by_analyst(store).values()) if answers is None else answers
        engine = store.engine
        return {
            "store": str(store.path),
            "tau": store.settings.tau,
            "records": len(engine.shard),
            "owners": len(engine.ledger.taken()),
            "forgotten": len(engine.ledger.tombstones),
            "answers": answers,
            "analysts": [scope or "" for scope in engine.ledger.scopes if scope != SHARED],
            **figures.status(engine, answers),
        }


def answers_by_analyst(store: Store) -> dict[Scope, int]:
    """How many answers each analyst was given, ever: queries that were charged, not repeats, and purged ones too.

    This is what "answers" means wherever they are counted: limits of keys, status, console and metrics.
    """
    # A sum over records has no query, and still has none where it was purged.
    query = "SELECT name, count(*) FROM answers JOIN scopes ON scope = id WHERE length(query) > 0 GROUP BY scope, name"
    with store.reading() as db:
        return {name[1:] or None: int(count) for name, count in db.execute(query)}

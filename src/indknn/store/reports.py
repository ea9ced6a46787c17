"""Facts about a store for its curator, in addition to `indknn.ledger.figures`."""

from __future__ import annotations

from typing import Any

from indknn.ledger import SHARED, Scope, figures
from indknn.store.store import Store


class Moment:
    """A store as it is now. It is copied in some milliseconds and can be read while the store goes on.

    If the caller knows the number of `answers`, the store does not have to count them.
    """

    def __init__(self, store: Store, answers: int | None = None):
        with store.reading():
            engine = store.engine
            self.path, self.settings, self.records = store.path, store.settings, len(engine.shard)
            self.ledger = engine.ledger.copy(names=False)
            self.answers = sum(answers_by_analyst(store).values()) if answers is None else answers
        self.earlier = engine.earlier
        self.shard = self.ledger  # nobody else has this ledger, so its lock is always free

    def status(self) -> dict[str, Any]:
        """The curator's view. Not for analysts: it depends on individual budgets."""
        return {
            "store": str(self.path),
            "tau": self.settings.tau,
            "records": self.records,
            "owners": len(self.ledger.taken()),
            "forgotten": len(self.ledger.tombstones),
            "answers": self.answers,
            "analysts": [scope or "" for scope in self.ledger.scopes if scope != SHARED],
            **figures.status(self, self.answers),
        }


def status(store: Store) -> dict[str, Any]:
    """The curator's view of a store as it is now."""
    return Moment(store).status()


def answers_by_analyst(store: Store) -> dict[Scope, int]:
    """How many answers each analyst was ever given. Repeats do not count, and purged answers do.

    This is the meaning of "answers" everywhere: in limits of keys, status, console and metrics.
    """
    # A sum over records has no query, also after a purge.
    query = "SELECT name, count(*) FROM answers JOIN scopes ON scope = id WHERE length(query) > 0 GROUP BY scope, name"
    with store.reading() as db:
        return {name[1:] if name else None: int(count) for name, count in db.execute(query)}

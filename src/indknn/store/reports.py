"""What the file of a store tells its curator, besides the figures of `indknn.ledger.figures`."""

from __future__ import annotations

from typing import Any

from indknn.ledger import SHARED, Scope, figures
from indknn.store.store import Store


class Moment:
    """What there is to report of a store, as it is now: made in some milliseconds, and read while the store goes on.

    Whoever knows how many `answers` were given spares the store from counting them.
    """

    def __init__(self, store: Store, answers: int | None = None):
        with store.reading():
            engine = store.engine
            self.path, self.settings, self.records = store.path, store.settings, len(engine.shard)
            self.ledger = engine.ledger.copy(names=False)
            self.answers = sum(answers_by_analyst(store).values()) if answers is None else answers
        self.shard = self.ledger  # nobody else has this one, so its lock is always free

    def status(self) -> dict[str, Any]:
        """The curator's view. Not for those who query: it depends on individual budgets."""
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
    """How many answers each analyst was given, ever: queries that were charged, not repeats, and purged ones too.

    This is what "answers" means wherever they are counted: limits of keys, status, console and metrics.
    """
    # A sum over records has no query, and still has none where it was purged.
    query = "SELECT name, count(*) FROM answers JOIN scopes ON scope = id WHERE length(query) > 0 GROUP BY scope, name"
    with store.reading() as db:
        return {name[1:] or None: int(count) for name, count in db.execute(query)}

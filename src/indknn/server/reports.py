"""Reports for curators and auditors. They depend on individual budgets, so analysts never see them (rule 8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

from indknn.store import Store
from indknn.store.chain import Entry, entries, last
from indknn.store.reports import Moment

_POINTS = 500
_ENTRIES = 5000  # of the audit trail, read at a time
_KEPT = 50 * _POINTS
_SINCE = "SELECT at, body FROM audit WHERE kind = 'answers' AND position > ? AND position <= ? ORDER BY position"


class Reports:
    """Reports about one store. It remembers what it read of the audit trail, so each entry is read once."""

    def __init__(self, store: Store):
        self.store = store
        self._read = 0
        self._answers: list[tuple[str, int]] = []  # by second, ascending

    def moment(self, answers: int) -> Callable[[], dict[str, Any]]:
        """A function that returns the status of the store as it is now, with the answers over time read so far.

        The store may go on before the function is called.
        """
        now, over_time = Moment(self.store, answers), self.answers_over_time()

        def status() -> dict[str, Any]:
            told = {name: fact for name, fact in now.status().items() if name != "store"}
            return {**told, "answers_over_time": over_time}

        return status

    def read_some(self) -> bool:
        """Read some more of the audit trail. Returns whether there is more to read."""
        with self.store.reading() as db:
            newest = last(db).position
            upto = min(self._read + _ENTRIES, newest)
            rows: list[Any] = db.execute(_SINCE, (self._read, upto)).fetchall()
            self._read = upto
        for at, body in rows:
            facts = json.loads(body)
            count = facts["count"] - facts.get("sums", 0)
            if self._answers and self._answers[-1][0] == at:
                count += self._answers.pop()[1]
            self._answers.append((at, count))
        while len(self._answers) > _KEPT:  # merge neighbours, so that memory stays limited
            pairs = zip(self._answers[::2], [*self._answers[1::2], ("", 0)], strict=False)
            self._answers = [(max(a, b), n + m) for (a, n), (b, m) in pairs]
        return upto < newest

    def answers_over_time(self) -> list[dict[str, Any]]:
        """How many answers were given, in at most 500 steps, the oldest first."""
        step = -(-len(self._answers) // _POINTS) or 1
        groups = [self._answers[i : i + step] for i in range(0, len(self._answers), step)]
        return [{"at": group[-1][0], "answers": sum(n for _, n in group)} for group in groups]

    def audit(self, after: int, limit: int) -> dict[str, Any]:
        """A page of the audit trail. `text` is the exact body that the hash covers."""
        with self.store.reading() as db:
            newest = last(db).position
            page: list[dict[str, Any]] = [
                {**_told(e), "body": e.facts, "text": e.body, "hash": e.hash.hex()}
                for e in islice(entries(db, after + 1), limit)
            ]
        more = bool(page) and page[-1]["position"] < newest
        return {"entries": page, "next": page[-1]["position"] if more else None, "last": newest}


def _told(entry: Entry) -> dict[str, Any]:
    return {"position": entry.position, "at": entry.at, "kind": entry.kind}

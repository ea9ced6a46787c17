"""What was already released is public, and may be used again for nothing (rule 10).

`Transcript.votes` adds earlier (query, answer) pairs to the vote as records that cost nothing and are not
counted in K: the paper's "prediction reuse".
`Transcript.answer` repeats the answer to the very same query: the price of a private answer is paid once.

Both are kept per analyst. With one ledger per analyst, what was released to Alice is not public to Bob, and
letting it shape Bob's answers would spend on his side what only her ledger was charged for (rule 11).

A repeat is answered from the transcript even after records came or went. That is deliberate: answering
afresh only when the data has changed would tell the analyst, without any noise, that it has.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from indknn.records.indexes import Index
from indknn.types import IntArray, Vectors


@dataclass
class Transcript:
    """The queries and answers that one analyst has seen. `pool` is None when votes are not reused."""

    pool: Index | None
    _labels: list[int] = field(default_factory=list)
    _answers: dict[bytes, int] = field(default_factory=dict)

    def answer(self, key: bytes) -> int | None:
        """The label released before for this very query, if any."""
        return self._answers.get(key)

    def votes(self, query: Vectors, tau: int, n_classes: int) -> IntArray:
        """Σ κ·e_a over the released pairs within τ of the query, in grid units."""
        if self.pool is None:
            return np.zeros(n_classes, dtype=np.int64)
        (near,) = self.pool.select(query, tau)
        labels = np.array(self._labels, dtype=np.int64)[near.slots]
        return np.bincount(labels, weights=near.kappa, minlength=n_classes).astype(np.int64)

    def add(self, query: Vectors, key: bytes, label: int) -> None:
        """Note a release. From here on it is public to this analyst."""
        self._answers[key] = label
        if self.pool is not None:
            del self._labels[len(self.pool) :]  # what an interrupt may have left
            self._labels.append(label)
            self.pool.add(query)  # nothing is ever removed from the pool, so slots are 0, 1, 2, ...


def query_key(query: Vectors) -> bytes:
    """A digest by which a query is recognised, of all that the mechanism sees of it."""
    return hashlib.blake2b(query.values.tobytes() + query.scale.tobytes(), digest_size=32).digest()


def keys_of(queries: Vectors) -> list[bytes]:
    """The digest of each query."""
    if len(queries) == 1:
        return [query_key(queries)]
    return [query_key(queries[slice(i, i + 1)]) for i in range(len(queries))]

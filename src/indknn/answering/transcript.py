"""What was already released to an analyst is public to that analyst, and may be used again for nothing (rule 10).

`Transcript.votes` adds earlier (query, answer) pairs to the vote as records that cost nothing and are not
counted in K: the paper's "prediction reuse". A query that was asked before gets its answer again.

Transcripts are kept per analyst. With one ledger per analyst, what was released to Alice is not public to Bob. If it
shaped Bob's answers, it would spend on his side what only her ledger was charged for (rule 11).

A repeat is answered from the transcript even after records came or went. An answer that changed only because the data
did would tell the analyst, without any noise, that they did.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from indknn.core.calibrate import Crowd
from indknn.core.releases import NoisyVotes, Release, Votes
from indknn.records.indexes import Index
from indknn.types import FloatArray, IntArray, Vectors


@dataclass(frozen=True)
class Answer:
    """What came out: a label for one query, and what else was released.

    `scores` are what the model and the votes made of each class, less 1/c; None where there is no model.
    """

    position: int
    label: int
    release: Release | None = None
    scores: FloatArray | None = None


@dataclass
class Transcript:
    """The queries and answers of one analyst. `pool` is None where earlier answers do not vote.

    `crowd` is what the counts released to the analyst tell; None where the noise on votes does not depend on it.
    """

    pool: Index | None
    crowd: Crowd | None = None
    answers: dict[bytes, int] = field(default_factory=dict)
    votes_on: dict[bytes, Votes | NoisyVotes] = field(default_factory=dict)
    """The noisy votes behind answers, where there were any."""
    _labels: list[int] = field(default_factory=list)

    def votes(self, query: Vectors, tau: int, n_classes: int) -> IntArray:
        """Σ κ·e_a over the released pairs within τ of the query, in grid units."""
        if self.pool is None:
            return np.zeros(n_classes, dtype=np.int64)
        (near,) = self.pool.search(query, tau)
        labels = np.array(self._labels, dtype=np.int64)[near.slots]
        return np.bincount(labels, weights=near.kappa, minlength=n_classes).astype(np.int64)

    def add(self, query: Vectors, key: bytes, label: int, release: Release | None = None) -> None:
        """Note a release. From here on it is public to this analyst."""
        self.answers[key] = label
        if isinstance(release, Votes | NoisyVotes):
            self.votes_on[key] = release
        if self.pool is not None:
            del self._labels[len(self.pool) :]  # what an interrupt may have left
            self._labels.append(label)
            self.pool.add(query)  # nothing is ever removed from the pool, so slots are 0, 1, 2, ...


def keys_of(queries: Vectors) -> list[bytes]:
    """A digest of each query, of all that the mechanism sees of it: equal queries have equal keys."""
    rows = zip(queries.values, queries.scale, strict=True)
    return [hashlib.blake2b(row.tobytes() + scale.tobytes(), digest_size=32).digest() for row, scale in rows]

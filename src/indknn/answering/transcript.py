"""What was released to an analyst. It is public to that analyst and may be used again at no cost (rule 10).

`Transcript.votes` adds earlier pairs of query and answer to the vote, as records that cost nothing and are not counted
in K. This is the paper's "prediction reuse". A query that was asked before gets the same answer again.

Each analyst has a separate transcript. With one ledger per analyst, what was released to Alice is not public to Bob. If
it shaped Bob's answers, Bob would learn something that only Alice's ledger was charged for (rule 11).

A repeated query is answered from the transcript even after records came or went. If the answer changed only because the
data changed, the analyst would learn of the change without any noise.
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
    """A label for one query, and what else was released.

    `scores` are the scores of each class from the model and the votes, minus 1/c. None if there is no model.
    """

    label: int
    release: Release | None = None
    scores: FloatArray | None = None


@dataclass
class Transcript:
    """The queries and answers of one analyst. `pool` is None if earlier answers do not vote.

    `crowd` follows the counts released to the analyst. None if the noise on votes does not depend on them.
    """

    pool: Index | None
    crowd: Crowd | None = None
    answers: dict[bytes, int] = field(default_factory=dict)
    votes_on: dict[bytes, Votes | NoisyVotes] = field(default_factory=dict)
    """The noisy votes behind answers. Answers without votes are missing."""
    _labels: list[int] = field(default_factory=list)

    def votes(self, query: Vectors, tau: int, n_classes: int) -> IntArray:
        """Σ κ·e_a over the released pairs within τ of the query, in grid units."""
        if self.pool is None:
            return np.zeros(n_classes, dtype=np.int64)
        (near,) = self.pool.search(query, tau)
        labels = np.array(self._labels, dtype=np.int64)[near.slots]
        return np.bincount(labels, weights=near.kappa, minlength=n_classes).astype(np.int64)

    def add(self, query: Vectors, key: bytes, label: int, release: Release | None = None) -> None:
        """Note a release. From now on it is public to this analyst."""
        self.answers[key] = label
        if isinstance(release, Votes | NoisyVotes):
            self.votes_on[key] = release
        if self.pool is not None:
            del self._labels[len(self.pool) :]  # labels that an interrupted call may have left
            self._labels.append(label)
            self.pool.add(query)  # nothing is ever removed from the pool, so slots are 0, 1, 2, ...


def keys_of(queries: Vectors) -> list[bytes]:
    """A digest of everything that the mechanism sees of each query. Equal queries have equal keys."""
    rows = zip(queries.values, queries.scale, strict=True)
    return [hashlib.blake2b(row.tobytes() + scale.tobytes(), digest_size=32).digest() for row, scale in rows]

"""What the theorem covers. Users see only the label of it. `tap` is a hook for audits alone.

The proof is about the noisy count, the noisy votes, and noisy sums over records. An adversary who sees those is
stronger than one who sees labels, so a bound against them is nearer to the claim. `tap` puts recorders around the
noisy functions of `mechanism` and `statistics`, whichever are in place, and takes them off again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from indknn.core import mechanism, releases, statistics
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.statistics import Contribution, MomentNoise
from indknn.models import Adviser
from indknn.records.shard import Shard
from indknn.types import GRID, IntArray, Vectors
from indknn_lab.audits.patches import Replacement, patched


@dataclass
class Release:
    """One pass through the mechanism. `raw` is the noisy count before it is lifted to 30; all in grid units.

    K is the released count after lifting, or a forecast where none was released (`counted` False); `votes_at` is what
    the noise on the votes was scaled by. `scores` and a counted `raw` are None where no noise was drawn. A correct
    mechanism always draws noise.
    """

    raw: int | None
    K: int
    counted: bool = True
    scores: IntArray | None = None
    votes: IntArray | None = None
    label: int = -1
    plan: Plan | None = None
    votes_at: int = 0
    scales: list[int] = field(default_factory=list)
    noise: list[IntArray] = field(default_factory=list)


@dataclass
class SumRelease:
    """A sum over records in parts: exact, as they were released, and the scales of the noise that was drawn for them.

    `again` takes the same parts from another shard, which is charged for it.
    """

    parts: list[IntArray]
    noisy: list[IntArray]
    scales: list[int]
    again: Callable[[Shard], list[IntArray]]


class Tape(list[Release]):
    """All passes through the mechanism. `sums` has all sums, `kept` the votes that left besides a label."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[SumRelease] = []
        self.kept: list[releases.Votes] = []


class Recorder:
    """Noise that remembers what it gave."""

    def __init__(self, noise: Noise):
        self._noise = noise
        self.secure = noise.secure
        self.scales: list[int] = []
        self.values: list[IntArray] = []

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """The same values as from the noise within."""
        values = self._noise.draw(scale, size)
        self.scales.append(int(scale))
        self.values.append(values)
        return values


def halves(A: IntArray, b: IntArray) -> list[IntArray]:
    """What `statistics.noisy_moments` adds noise to, in its order: above the diagonal of A, on it, and b."""
    return [A[np.triu_indices(len(A), 1)], np.diag(A), b.ravel()]


@contextmanager
def tap() -> Iterator[Tape]:
    """A tape that grows by one `Release` with every pass through the mechanism, and with every sum."""
    tape = Tape()
    with patched(_Ears(tape).listeners()):
        yield tape


class _Ears:
    """The recorders of one tap. `open` is an answer that was counted and has not voted yet."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.open: Release | None = None
        self.arguments: tuple[Any, ...] = ()  # of the latest sum over a shard's records

    def listeners(self) -> list[Replacement]:
        """Where to listen, and with what."""
        functions: list[tuple[Any, str, Callable[..., Any]]] = [
            (mechanism, "noisy_count", self._count),
            (mechanism, "noisy_votes", self._votes),
            (mechanism, "noisy_argmax", self._argmax),
            (statistics, "noisy_moments", self._moments),
            (statistics, "noisy_tally", self._tally),
        ]
        moments, tally, note = Shard.moments, Shard.tally, Adviser.note
        return [
            *((where, name, partial(listener, getattr(where, name))) for where, name, listener in functions),
            (Shard, "moments", lambda shard, *arguments: self._called(moments, shard, arguments)),
            (Shard, "tally", lambda shard, *arguments: self._called(tally, shard, arguments)),
            (Adviser, "note", lambda adviser, *answer: self._note(note, adviser, *answer)),
        ]

    def _count(self, original: Callable[..., int], total: int, plan: Plan, noise: Noise) -> int:
        recorder = Recorder(noise)
        K = original(total, plan, recorder)
        raw = total * GRID + int(recorder.values[-1][0]) if recorder.values else None
        self.open = Release(raw, K, scales=recorder.scales, noise=recorder.values)
        self.tape.append(self.open)
        return K

    def _votes(self, original: Callable[..., IntArray], votes: IntArray, K: int, plan: Plan, noise: Noise) -> IntArray:
        release, recorder = self._release(votes, K, plan), Recorder(noise)
        noisy = original(votes, K, plan, recorder)
        release.scores = noisy if recorder.values else None
        release.scales += recorder.scales
        release.noise += recorder.values
        self.open = None
        return noisy

    def _argmax(self, original: Callable[..., int], votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
        release = self._release(votes, K, plan)  # `noisy_votes`, which it calls, adds to it
        release.label = original(votes, K, plan, noise)
        self.open = None
        return release.label

    def _release(self, votes: IntArray, K: int, plan: Plan) -> Release:
        """The answer that these votes belong to."""
        if self.open is None:
            self.open = Release(None, K, counted=False)
            self.tape.append(self.open)
        self.open.votes, self.open.plan, self.open.votes_at = votes, plan, K
        return self.open

    def _called(self, original: Callable[..., Contribution], shard: Shard, arguments: tuple[Any, ...]) -> Contribution:
        self.arguments = arguments
        return original(shard, *arguments)

    def _moments(
        self, original: Callable[..., Any], A: IntArray, b: IntArray, noise: MomentNoise, source: Noise
    ) -> tuple[IntArray, IntArray]:
        recorder, arguments = Recorder(source), self.arguments
        noisy: tuple[IntArray, IntArray] = original(A, b, noise, recorder)
        again = lambda shard: halves(*shard.moments(*arguments).sums)  # noqa: E731
        self.tape.sums.append(SumRelease(halves(A, b), halves(*noisy), recorder.scales, again))
        return noisy

    def _tally(self, original: Callable[..., IntArray], counts: IntArray, scale: int, source: Noise) -> IntArray:
        recorder, arguments = Recorder(source), self.arguments
        noisy = original(counts, scale, recorder)
        again = lambda shard: list(shard.tally(*arguments).sums)  # noqa: E731
        self.tape.sums.append(SumRelease([counts], [noisy], recorder.scales, again))
        return noisy

    def _note(
        self, original: Callable[..., None], adviser: Adviser, query: Vectors, release: releases.Release | None
    ) -> None:
        self.tape.kept += [release] if isinstance(release, releases.Votes) else []
        original(adviser, query, release)

"""What the theorem covers. Users see only the label of it. `tap` is a hook for audits alone.

The proof is about the noisy count, the noisy votes, and noisy sums over records. An adversary who sees those is
stronger than one who sees labels, so a bound against them is nearer to the claim. `tap` puts recorders around the
noisy functions of `mechanism` and `statistics`, whichever are in place, and takes them off again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np

from indknn.core import mechanism, releases, statistics
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.statistics import Contribution, MomentNoise
from indknn.models import Adviser
from indknn.records.shard import Shard
from indknn.types import GRID, IntArray
from indknn_lab.audits.patches import Replacement, patched


@dataclass
class Noised:
    """Exact integers in one or more parts, the same with noise, and the scale of the noise on each part.

    A count has the released K, after it was lifted to 30. Votes have the K that their noise was scaled by, and a label
    where one follows. A sum over records has `again`, which takes its parts from another shard and charges it.
    """

    kind: Literal["count", "votes", "sum"]
    exact: list[IntArray]
    noisy: list[IntArray]
    scales: list[int]
    plan: Plan | None = None
    K: int = 0
    label: int = -1
    again: Callable[[Shard], list[IntArray]] | None = None

    @property
    def bare(self) -> bool:
        """Whether something was released without noise. A correct product never does that."""
        return len(self.scales) != len(self.exact)

    @property
    def noise(self) -> list[IntArray]:
        """The noise on each part."""
        return [noisy - exact for noisy, exact in zip(self.noisy, self.exact, strict=True)]


class Tape(list[Noised]):
    """Everything that got noise, in order. `kept` are the votes that left besides a label."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[releases.Votes] = []

    def of(self, kind: str) -> list[Noised]:
        """What is of one kind."""
        return [one for one in self if one.kind == kind]


class Recorder:
    """Noise that remembers at which scales it was drawn."""

    def __init__(self, noise: Noise):
        self._noise = noise
        self.secure = noise.secure
        self.scales: list[int] = []

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """The same values as from the noise within."""
        self.scales.append(int(scale))
        self.latest = self._noise.draw(scale, size)
        return self.latest


def halves(A: IntArray, b: IntArray) -> list[IntArray]:
    """What `statistics.noisy_moments` adds noise to, in its order: above the diagonal of A, on it, and b."""
    return [A[np.triu_indices(len(A), 1)], np.diag(A), b.ravel()]


@contextmanager
def tap() -> Iterator[Tape]:
    """A tape that grows with every count, every vote and every sum that gets noise."""
    ears = _Ears()
    with patched(ears.listeners()):
        yield ears.tape


class _Ears:
    """The listeners of one tap. Each is called in the place of the original, which is its first argument."""

    def __init__(self) -> None:
        self.tape = Tape()
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
            (Adviser, "note", lambda *arguments: self._note(note, *arguments)),
        ]

    def _count(self, original: Callable[..., int], total: int, plan: Plan, noise: Noise) -> int:
        recorder, exact = Recorder(noise), np.array([total * GRID])
        K = original(total, plan, recorder)
        noisy = exact + recorder.latest if recorder.scales else exact
        self.tape.append(Noised("count", [exact], [noisy], recorder.scales, plan, K))
        return K

    def _votes(self, original: Callable[..., IntArray], votes: IntArray, K: int, plan: Plan, noise: Noise) -> IntArray:
        recorder = Recorder(noise)
        noisy = original(votes, K, plan, recorder)
        self.tape.append(Noised("votes", [votes], [noisy], recorder.scales, plan, K))
        return noisy

    def _argmax(self, original: Callable[..., int], votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
        before = len(self.tape)
        label = original(votes, K, plan, noise)
        if len(self.tape) == before:  # it did not call `noisy_votes`
            self.tape.append(Noised("votes", [votes], [votes], [], plan, K))
        self.tape[-1].label = label
        return label

    def _called(self, original: Callable[..., Contribution], shard: Shard, arguments: tuple[Any, ...]) -> Contribution:
        self.arguments = arguments
        return original(shard, *arguments)

    def _moments(
        self, original: Callable[..., Any], A: IntArray, b: IntArray, noise: MomentNoise, source: Noise
    ) -> tuple[IntArray, IntArray]:
        recorder, arguments = Recorder(source), self.arguments
        noisy: tuple[IntArray, IntArray] = original(A, b, noise, recorder)
        again = lambda shard: halves(*shard.moments(*arguments).sums)  # noqa: E731
        self.tape.append(Noised("sum", halves(A, b), halves(*noisy), recorder.scales, again=again))
        return noisy

    def _tally(self, original: Callable[..., IntArray], counts: IntArray, scale: int, source: Noise) -> IntArray:
        recorder, arguments = Recorder(source), self.arguments
        noisy = original(counts, scale, recorder)
        again = lambda shard: list(shard.tally(*arguments).sums)  # noqa: E731
        self.tape.append(Noised("sum", [counts], [noisy], recorder.scales, again=again))
        return noisy

    def _note(self, original: Callable[..., None], *arguments: Any) -> None:
        self.tape.kept += [one for one in arguments if isinstance(one, releases.Votes)]
        original(*arguments)

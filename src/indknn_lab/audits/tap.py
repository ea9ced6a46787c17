"""What the theorem covers, of which users see only the label: a hook of the curator's, for audits alone.

The proof is about the count with its noise, the votes with theirs, and noisy sums over records. An adversary who sees
those is stronger than any who sees labels, so a bound against them is nearer to the claim. `tap` puts recorders
around the noisy functions of `mechanism` and `sums`, whichever are in place, and takes them off again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from indknn.core import mechanism, statistics
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.statistics import Contribution, MomentNoise
from indknn.records.shard import Shard
from indknn.types import GRID, IntArray


@dataclass
class Release:
    """One pass through the mechanism. `raw` is the noisy count before it is lifted to 30; all in grid units.

    K is what the released count was lifted to, or was foretold where none was released (`counted` False); `votes_at` is
    what the noise on the votes was scaled by. `scores` and a counted `raw` are None where no noise was drawn, which a
    correct mechanism never does. `chosen` where the label was chosen by the exponential mechanism.
    """

    raw: int | None
    K: int
    counted: bool = True
    scores: IntArray | None = None
    votes: IntArray | None = None
    label: int = -1
    plan: Plan | None = None
    votes_at: int = 0
    chosen: bool = False
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
    """All answers, and besides them all sums."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[SumRelease] = []


class Recorder:
    """Noise that remembers what it gave."""

    def __init__(self, noise: Noise):
        self._noise = noise
        self.secure = noise.secure
        self.drawn: list[tuple[int, IntArray]] = []
        self.choices: list[int] = []

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """As the noise within."""
        values = self._noise.draw(scale, size)
        self.drawn.append((int(scale), values))
        return values

    def choose(self, utilities: IntArray, scale: int) -> int:
        """As the noise within; there is no noise to remember, only its scale."""
        self.choices.append(scale)
        return self._noise.choose(utilities, scale)


def halves(A: IntArray, b: IntArray) -> list[IntArray]:
    """What `statistics.noisy_moments` adds noise to, in its order: above the diagonal of A, on it, and b."""
    return [A[np.triu_indices(len(A), 1)], np.diag(A), b.ravel()]


@contextmanager
def tap() -> Iterator[Tape]:
    """A tape that grows by one `Release` with every pass through the mechanism, and with every sum."""
    tape, ears = Tape(), _Ears()
    with ExitStack() as undo:
        for where, name, listener in ears.listeners(tape):
            original = getattr(where, name)
            undo.callback(setattr, where, name, original)
            setattr(where, name, listener(original))
        yield tape


class _Ears:
    """The recorders of one tap. `open` is an answer that was counted and has not voted yet."""

    def __init__(self) -> None:
        self.open: Release | None = None
        self.calls: tuple[Any, ...] = ()

    def listeners(self, tape: Tape) -> list[tuple[object, str, Callable[..., Any]]]:
        """Where to listen, and with what."""

        def count(original: Callable[..., int]) -> Callable[..., int]:
            def noisy_count(total: int, plan: Plan, noise: Noise) -> int:
                recorder = Recorder(noise)
                K = original(total, plan, recorder)
                self.open = Release(None, K)
                for _, values in recorder.drawn:
                    self.open.raw = total * GRID + int(values[0])
                _keep(self.open, recorder)
                tape.append(self.open)
                return K

            return noisy_count

        def votes(original: Callable[..., IntArray]) -> Callable[..., IntArray]:
            def noisy_votes(votes: IntArray, K: int, plan: Plan, noise: Noise) -> IntArray:
                release, recorder = self._release(tape, votes, K, plan), Recorder(noise)
                noisy = original(votes, K, plan, recorder)
                if recorder.drawn:
                    release.scores = noisy
                _keep(release, recorder)
                self.open = None
                return noisy

            return noisy_votes

        def label(original: Callable[..., int]) -> Callable[..., int]:
            def argmax(votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
                release, recorder = self._release(tape, votes, K, plan), Recorder(noise)
                before = len(release.scales)
                release.label = original(votes, K, plan, recorder)
                release.chosen = bool(recorder.choices)
                if len(release.scales) == before:  # `noisy_votes` has not heard it already
                    _keep(release, recorder)
                    release.scores = votes + recorder.drawn[-1][1] if recorder.drawn else None
                self.open = None
                return release.label

            return argmax

        def called(original: Callable[..., Contribution]) -> Callable[..., Contribution]:
            def call(shard: Shard, *arguments: Any) -> Contribution:
                self.calls = arguments
                return original(shard, *arguments)

            return call

        def moments(original: Callable[..., tuple[IntArray, IntArray]]) -> Callable[..., tuple[IntArray, IntArray]]:
            def noisy_moments(A: IntArray, b: IntArray, noise: MomentNoise, source: Noise) -> tuple[IntArray, IntArray]:
                recorder, arguments = Recorder(source), self.calls
                noisy = original(A, b, noise, recorder)
                again = lambda shard: halves(*shard.moments(*arguments).sums)  # noqa: E731
                tape.sums.append(_sum(halves(A, b), halves(*noisy), recorder, again))
                return noisy

            return noisy_moments

        def tally(original: Callable[..., IntArray]) -> Callable[..., IntArray]:
            def noisy_tally(counts: IntArray, scale: int, source: Noise) -> IntArray:
                recorder, arguments = Recorder(source), self.calls
                noisy = original(counts, scale, recorder)
                again = lambda shard: list(shard.tally(*arguments).sums)  # noqa: E731
                tape.sums.append(_sum([counts], [noisy], recorder, again))
                return noisy

            return noisy_tally

        return [
            (mechanism, "noisy_count", count),
            (mechanism, "noisy_votes", votes),
            (mechanism, "noisy_argmax", label),
            (mechanism, "exponential_argmax", label),
            (Shard, "moments", called),
            (Shard, "tally", called),
            (statistics, "noisy_moments", moments),
            (statistics, "noisy_tally", tally),
        ]

    def _release(self, tape: Tape, votes: IntArray, K: int, plan: Plan) -> Release:
        """The answer that these votes belong to."""
        if self.open is None:
            self.open = Release(None, K, counted=False)
            tape.append(self.open)
        self.open.votes, self.open.plan, self.open.votes_at = votes, plan, K
        return self.open


def _keep(release: Release, recorder: Recorder) -> None:
    release.scales += [scale for scale, _ in recorder.drawn] + recorder.choices
    release.noise += [values for _, values in recorder.drawn]


def _sum(
    parts: list[IntArray], noisy: list[IntArray], recorder: Recorder, again: Callable[[Shard], list[IntArray]]
) -> SumRelease:
    return SumRelease(parts, noisy, [scale for scale, _ in recorder.drawn], again)

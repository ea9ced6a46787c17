"""What the theorem covers, of which users see only the label: a hook of the curator's, for audits alone.

The proof is about the count with its noise and the votes with theirs. An adversary who sees those is stronger than
any who sees labels, so a bound against them is nearer to the claim. `tap` puts recorders around the two noisy
functions of the mechanism, whichever are in place, and takes them off again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

from indknn import mechanism
from indknn.noise import Noise
from indknn.types import GRID, IntArray, Plan


@dataclass
class Release:
    """One pass through the mechanism. `raw` is the noisy count before it is lifted to 30; all in grid units.

    `scores` and `raw` are None where no noise was drawn, which a correct mechanism never does.
    """

    raw: int | None
    K: int
    scores: IntArray | None = None
    votes: IntArray | None = None
    label: int = -1
    scales: list[int] = field(default_factory=list)
    noise: list[IntArray] = field(default_factory=list)


class Recorder:
    """Noise that remembers what it gave."""

    def __init__(self, noise: Noise):
        self._noise = noise
        self.secure = noise.secure
        self.drawn: list[tuple[int, IntArray]] = []

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """As the noise within."""
        values = self._noise.draw(scale, size)
        self.drawn.append((int(scale), values))
        return values

    def choose(self, utilities: IntArray, scale: int) -> int:
        """As the noise within; there is no noise to remember."""
        return self._noise.choose(utilities, scale)


@contextmanager
def tap() -> Iterator[list[Release]]:
    """A list that grows by one `Release` with every pass through the mechanism."""
    releases: list[Release] = []
    noisy_count, noisy_argmax = mechanism.noisy_count, mechanism.noisy_argmax

    def count(total: int, plan: Plan, noise: Noise) -> int:
        recorder = Recorder(noise)
        K = noisy_count(total, plan, recorder)
        release = Release(None, K)
        for scale, values in recorder.drawn:
            release.raw = total * GRID + int(values[0])
            release.scales.append(scale)
            release.noise.append(values)
        releases.append(release)
        return K

    def argmax(votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
        recorder = Recorder(noise)
        label = noisy_argmax(votes, K, plan, recorder)
        release = releases[-1]
        release.label, release.votes = label, votes
        for scale, values in recorder.drawn:
            release.scores = votes + values
            release.scales.append(scale)
            release.noise.append(values)
        return label

    mechanism.noisy_count, mechanism.noisy_argmax = count, argmax
    try:
        yield releases
    finally:
        mechanism.noisy_count, mechanism.noisy_argmax = noisy_count, noisy_argmax

"""Every release with its exact sums and its noise: recorded in one world, forced upon the other.

All that leaves comes out of a few functions, which add noise to exact sums. In the first world a `Tape` records the sums,
the scales and the noise. In the second world, where one person is missing, it gives each function the noise with which
the release is the same again: the noise of the first world, moved by what that person had added. That shift, over the
scale that was really drawn, is what the release costs them: ρ = |Δ|²/2s², computed in exact fractions.
"""

from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import numpy as np

from indknn.cluster.shard import ClusterShard
from indknn.core import mechanism, statistics, training
from indknn.core.releases import ModelOnly
from indknn.ledger import SHARED
from indknn.models import SharedModel
from indknn.models.adviser import Adviser
from indknn.records.shard import Shard
from indknn.store import table_counts
from indknn.types import GRID
from indknn_lab.audits.patches import patched

ALL = object()
"""All analysts."""


class Divergence(AssertionError):  # noqa: N818 - a finding
    """The two worlds are not the same to others, or somebody was charged less than they gave away."""


@dataclass
class Release:
    """One pass through a noisy function: exact sums in parts, and the noise that was added to each of them."""

    kind: str
    scope: str | None
    parts: list
    centred: bool
    scales: list = field(default_factory=list)
    noise: list = field(default_factory=list)
    result: object = None


class Recording:
    """Noise that writes down what it gave."""

    def __init__(self, noise, release):
        self._noise, self._release, self.secure = noise, release, noise.secure

    def draw(self, scale, size):
        values = self._noise.draw(scale, size)
        self._release.scales.append(int(scale))
        self._release.noise.append(values)
        return values


class Silent:
    """The noise of a world in which every release is forced."""

    secure = True

    def draw(self, scale, size):
        raise Divergence(f"noise was drawn at {scale} for a release that the tape does not know")


class Forcing:
    """The noise of the other world, moved by the shifts. It must be asked for in the same sizes at the same scales."""

    secure = True

    def __init__(self, release, told, shifts):
        self._release, self._told, self._shifts = release, told, shifts

    def draw(self, scale, size):
        i = len(self._release.scales)
        self._release.scales.append(int(scale))
        if self._release.scales != self._told.scales[: i + 1] or size != len(self._told.noise[i]):
            raise Divergence(f"{self._told.kind}: noise at {self._told.scales} with, {self._release.scales} without")
        return self._told.noise[i] + self._shifts[i]


class Tape:
    """All releases of a world in order. With `told`, the tape of another world, it forces them instead.

    With `scopes`, the releases in those are forced, and all others are drawn anew. `cost` is what the forced ones cost
    the missing person, by scope.
    """

    def __init__(self, told=None, scopes=ALL):
        self.releases, self.cost, self.alone = [], defaultdict(Fraction), 0
        self._told = defaultdict(list)
        self._forces = lambda scope: told is not None and (scopes is ALL or scope in scopes)
        for release in told.releases if told else ():
            if self._forces(release.scope):
                self._told[release.scope].append(release)
        self._scope = None
        self._counting = deque()  # scopes of the counts that a cluster makes together

    @contextmanager
    def __call__(self):
        """In place for the length of a `with`, around whatever is in place already."""
        noisy = [
            (mechanism, "noisy_count", lambda total, plan: [np.array([total * GRID])]),
            (mechanism, "noisy_votes", lambda votes, K, plan: [votes]),
            (statistics, "noisy_tally", lambda counts, scale: [counts]),
            (training, "noisy_gradient", lambda total, scale: [total.ravel()]),
        ]
        replacements = [(where, name, partial(self._noisy, getattr(where, name), name, f)) for where, name, f in noisy]
        charging = [
            (Shard, "admit"),
            *((shard, name) for shard in (Shard, ClusterShard) for name in ("tally", "headcount", "gradient")),
        ]
        replacements += [(shard, name, self._charged(getattr(shard, name))) for shard, name in charging]
        replacements += [(ClusterShard, "ask", self._asked(ClusterShard.ask))]
        replacements += [(ClusterShard, "votes", self._settled(ClusterShard.votes))]
        replacements += [(table_counts, "_released", self._paid(table_counts._released))]
        public = ((Adviser, "note"), (SharedModel, "absorb"))
        replacements += [(where, name, self._public(getattr(where, name))) for where, name in public]
        with patched(replacements):
            yield self

    def finish(self):
        """Nothing may be left that was released in the other world alone."""
        left = {scope: [release.kind for release in rest] for scope, rest in self._told.items() if rest}
        if left:
            raise Divergence(f"released only with the person: {left}")

    def _charged(self, original):
        def charged(shard, *arguments, **options):
            self._scope = arguments[-1]
            return original(shard, *arguments, **options)

        return charged

    def _asked(self, original):
        def ask(shard, near, questions, *, counted=True):
            asked = original(shard, near, questions, counted=counted)
            if counted:
                self._counting = deque(scope for _, scope in questions)
            return asked

        return ask

    def _settled(self, original):
        def votes(shard, admitted, *rest):
            for one, sums in zip(admitted, original(shard, admitted, *rest), strict=True):
                self._scope = one.scope
                yield sums

        return votes

    def _paid(self, original):
        def released(*arguments):
            self._scope = SHARED
            return original(*arguments)

        return released

    def _public(self, original):
        """The public side of an analyst remembers what it is told, and so does the shared model."""

        def told(listener, *arguments):
            listener.__dict__.setdefault("told", []).append(arguments[-1])
            self.alone += isinstance(arguments[-1], ModelOnly)
            return original(listener, *arguments)

        return told

    def _noisy(self, original, kind, parts_of, *arguments):
        *given, noise = arguments
        if kind == "noisy_count" and self._counting:
            self._scope = self._counting.popleft()
        parts = [np.array(part, dtype=np.int64) for part in parts_of(*given)]
        release = Release(kind, self._scope, parts, kind == "noisy_votes" and given[-1].contrast)
        self.releases.append(release)
        if self._forces(self._scope):
            return self._forced(original, given, release)
        release.result = original(*given, Recording(noise, release))
        if len(release.scales) != len(parts):
            raise Divergence(f"{kind}: {len(parts)} sums were released with {len(release.scales)} draws of noise")
        return release.result

    def _forced(self, original, given, release):
        rest = self._told[release.scope]
        if not rest or rest[0].kind != release.kind:
            there = rest[0].kind if rest else "nothing"
            raise Divergence(f"for {release.scope}: {there} with, {release.kind} without")
        told = rest.pop(0)
        shifts = [x - z for x, z in zip(told.parts, release.parts, strict=True)]
        common = _nearest_mean(shifts[0]) if release.centred else 0
        shifts = [shift - common for shift in shifts]
        result = original(*given, Forcing(release, told, shifts))
        if len(release.scales) != len(told.scales):
            raise Divergence(f"{release.kind}: {told.scales} drawn with, {release.scales} without")
        if not np.array_equal(_flat(told.result) - common, _flat(result)):
            raise Divergence(f"{release.kind}: something else than the sums and their noise is released")
        for shift, scale in zip(shifts, release.scales, strict=True):
            self.cost[release.scope] += Fraction(sum(v * v for v in shift.tolist()), 2 * scale**2)
        return result


def _nearest_mean(shift):
    """The whole number t with the smallest |shift - t·1|. Where only centred votes leave, it is free."""
    total, n = sum(shift.tolist()), len(shift)
    return (2 * total + n) // (2 * n)


def _flat(result):
    parts = result if isinstance(result, tuple) else (result,)
    return np.concatenate([np.atleast_1d(part).ravel() for part in parts])

"""Records everything that the theorem covers. Users see only the labels. `tap` is only for audits.

The proof covers the noisy counts, the noisy votes, and the noisy sums over records. An adversary who sees those is
stronger than one who sees labels. So a bound from such an adversary is nearer to the claim. `tap` wraps the noisy
functions of `mechanism`, `statistics` and `training` that are in place, and restores them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from indknn.core import mechanism, releases, statistics, training
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.models.adviser import Adviser
from indknn.records.derived import Derived
from indknn.records.shard import Shard
from indknn.types import GRID, IntArray
from indknn_lab.audits.patches import Replacement, patched

Sum: TypeAlias = Literal["tally", "gradient"]


@dataclass
class Noised:
    """Exact integers in one or more parts, the same integers with noise, and the scale of the noise on each part.

    A count has the released K, which is at least 30. Votes have the K that set the scale of their noise, and a label if
    one was released. A sum over records has `again`, which computes the sum for another shard and charges that shard.
    """

    kind: Literal["count", "votes"] | Sum
    exact: list[IntArray]
    noisy: list[IntArray]
    scales: list[int]
    plan: Plan | None = None
    K: int = 0
    label: int = -1
    again: Callable[[Shard], IntArray] | None = None

    @property
    def bare(self) -> bool:
        """Whether something was released without noise. A correct product never does this."""
        return len(self.scales) != len(self.exact)

    @property
    def noise(self) -> list[IntArray]:
        """The noise on each part."""
        return [noisy - exact for noisy, exact in zip(self.noisy, self.exact, strict=True)]


class Tape(list[Noised]):
    """Everything that got noise, in order. `kept` are the votes that were released in addition to a label."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[releases.Votes] = []

    def of(self, kind: str) -> list[Noised]:
        """All entries of one kind."""
        return [one for one in self if one.kind == kind]

    @property
    def shared(self) -> list[Noised]:
        """The entries that every analyst sees: sums over all records."""
        return [one for one in self if one.again is not None]


class Recorder:
    """Noise that records the scales at which it was drawn."""

    def __init__(self, noise: Noise):
        self._noise = noise
        self.secure = noise.secure
        self.scales: list[int] = []

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """The values that the wrapped noise draws."""
        self.scales.append(int(scale))
        self.latest = self._noise.draw(scale, size)
        return self.latest


@contextmanager
def tap() -> Iterator[Tape]:
    """A tape to which every noisy count, vote and sum is added inside the `with`."""
    ears = _Ears()
    with patched(ears.listeners()):
        yield ears.tape


class _Ears:
    """The listeners of one tap. Each is called instead of the original function, which is its first argument."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.arguments: tuple[Any, ...] = ("", None)  # the arguments of the latest sum over a shard's records

    def listeners(self) -> list[Replacement]:
        """The functions to replace, and the listeners."""
        functions: list[tuple[Any, str, Callable[..., Any]]] = [
            (mechanism, "noisy_count", self._count),
            (mechanism, "noisy_votes", self._votes),
            (mechanism, "noisy_answer", self._answer),
            (statistics, "noisy_tally", partial(self._sum, "tally")),
            (training, "noisy_gradient", partial(self._sum, "gradient")),
        ]
        note = Adviser.note
        return [
            *((where, name, partial(listener, getattr(where, name))) for where, name, listener in functions),
            *((Shard, name, self._called(getattr(Shard, name))) for name in ("tally", "headcount", "gradient")),
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

    def _answer(
        self, original: Callable[..., tuple[int, IntArray]], votes: IntArray, K: int, plan: Plan, noise: Noise
    ) -> tuple[int, IntArray]:
        before = len(self.tape)
        label, noisy = original(votes, K, plan, noise)
        if len(self.tape) == before:  # it did not call `noisy_votes`
            self.tape.append(Noised("votes", [votes], [votes], [], plan, K))
        self.tape[-1].label = label
        return label, noisy

    def _called(self, original: Callable[..., IntArray]) -> Callable[..., IntArray]:
        def called(shard: Shard, *arguments: Any) -> IntArray:
            self.arguments = original.__name__, *arguments
            return original(shard, *arguments)

        return called

    def _sum(self, kind: Sum, original: Callable[..., IntArray], sums: IntArray, scale: int, noise: Noise) -> IntArray:
        recorder, (name, about, *rest) = Recorder(noise), self.arguments
        noisy = original(sums, scale, recorder)

        def again(shard: Shard) -> IntArray:
            theirs = Derived(shard, about._rule, about.cohort) if isinstance(about, Derived) else about
            return np.asarray(getattr(shard, name)(theirs, *rest)).ravel()

        self.tape.append(Noised(kind, [sums.ravel()], [noisy.ravel()], recorder.scales, again=again))
        return noisy

    def _note(self, original: Callable[..., None], *arguments: Any) -> None:
        self.tape.kept += [one for one in arguments if isinstance(one, releases.Votes)]
        original(*arguments)

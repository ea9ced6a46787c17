"""Rounds of training of the shared model: counts, gradients and report cards, charged to the shared ledger.

A round is cut into pieces, so that answers can be given in between. Every release is charged and written down as soon
as it is made. A crash or a stop costs at most the release that was being made. The round continues from there. How far
a round is, in one line on a terminal or in a notebook, follows from releases alone, and from the clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from indknn.core import accounting, statistics, training
from indknn.core.noise import Noise
from indknn.core.releases import Gradient, ModelShown, Release, TallyRelease
from indknn.ledger import SHARED
from indknn.models import SharedModel
from indknn.models.feature_map import FeatureMap
from indknn.models.shared_model import STEPS, Due
from indknn.records.any_shard import AnyShard, Filled
from indknn.records.derived import Arguments
from indknn.types import Cohort, FloatArray

_MOMENT = 0.002  # seconds
PATIENCE = 2.0
"""Seconds. A training that is shorter is not worth a line."""


@dataclass(frozen=True)
class Progress:
    """How far a round is: gradients made in it, and gradients still to come."""

    made: int
    follow: int


MayShow: TypeAlias = Callable[[], bool]
"""Says whether a finished model may be shown now. It must not depend on the records (rule 17)."""
Watch: TypeAlias = Callable[[Progress | None], None]
"""Is told before each piece of a round how far the round is, and None at its end. That follows from releases alone."""


def at_once() -> bool:
    """A finished model is shown at once, because whoever asks waits for it."""
    return True


class Trainer:
    """Makes the releases of the shared model that are due, piece by piece.

    Any number of callers may take pieces in turn. What is due is looked up anew for each piece (rule 18).
    """

    def __init__(self, model: SharedModel, shard: AnyShard, noise: Noise, released: Callable[[Release], None]):
        self._model, self._shard, self._noise = model, shard, noise
        self._released = released  # gives a release to the model and makes it durable
        self._map: tuple[Cohort, Future[tuple[FeatureMap, FloatArray | None]]] | None = None
        self._derived: tuple[Due, Cohort, Filled] | None = None
        self._full: tuple[Due, Cohort, int] | None = None  # the step for which everything is there

    def piece(self, *, whole: bool = False) -> Progress | None:
        """Do some milliseconds of work, or make the `whole` release that is due because nobody waits.

        Returns None if nothing is due. The caller must hold all locks.
        """
        model, due = self._model, self._model.due()
        if due is None:
            self._derived = None
            return None
        if due == "show":
            self._released(ModelShown())
        elif due == "count":
            self._released(self._headcount())
        elif due == "step" and not model.mapped:
            self._make_map()
        elif whole or self._filled(due):
            if due == "card":
                self._released(self._card())
            elif whole or not self._shard.prepare_gradient(self._rows(due), self._step, SHARED):
                self._released(self._gradient())
        return Progress(model.step, model.follow)

    def _make_map(self) -> None:
        """Make the map in another thread, while answers are given."""
        if self._map is None or self._map[0] != self._model.cohort:
            threads = ThreadPoolExecutor(1, "map")
            self._map = self._model.cohort, threads.submit(self._model.make_map)
            threads.shutdown(wait=False)  # it ends with its work
        made = self._map[1]
        if wait([made], _MOMENT).done:
            self._map = None
            self._model.take_map(*made.result())

    def _rows(self, due: Due) -> Filled:
        """What a release needs to know about every record: features or cells."""
        cohort = self._model.cohort
        if self._derived is None or self._derived[:2] != (due, cohort):
            self._derived = due, cohort, self._shard.derived(self._model.rule(due), cohort)
        return self._derived[2]

    def _filled(self, due: Due) -> bool:
        """Compute some more of it. Returns whether all was there. Later changes of records are computed when needed."""
        step = due, self._model.cohort, self._model.step
        if self._full != step:
            self._full = None if self._rows(due).fill() else step
        return self._full == step

    @property
    def _step(self) -> Arguments:
        model = self._model
        return Arguments(model.weights, model.clip, model.scale, accounting.to_units(model.reserve), model.cohort)

    def _gradient(self) -> Gradient:
        model, step = self._model, self._step
        total = self._shard.gradient(self._rows("step"), step, SHARED)
        noisy = training.noisy_gradient(total, step.scale, self._noise)
        return Gradient(model.step, model.follow - 1, step.scale, noisy.ravel())

    def _card(self) -> TallyRelease:
        cells, scale, units = self._model.n_cells("card"), *self._price("card")
        counts = self._shard.tally(self._rows("card"), cells, scale, units, SHARED)
        return TallyRelease(1, scale, statistics.noisy_tally(counts, scale, self._noise))

    def _headcount(self) -> TallyRelease:
        model, (scale, units) = self._model, self._price("count")
        cells, since = model.n_cells("count"), model.since if model.trained else 0
        counts = self._shard.headcount(model.cohort, cells, model.span, since, scale, units, SHARED)
        return TallyRelease(0, scale, statistics.noisy_tally(counts, scale, self._noise))

    def _price(self, due: Due) -> tuple[int, int]:
        """The noise on the cells of a count or a card, and the most that anybody pays for it."""
        price = self._model.price(due)
        return statistics.tally_scale(price), accounting.to_units(price)


class TrainingLine:
    """Says what a training costs, then how far it is, in one line that is overwritten.

    Where nobody watches, as in a log, it says once how long the training will take, if that is long.
    `verbose` True: always. None: if a person is watching, and it takes longer than `PATIENCE`.
    """

    def __init__(
        self,
        words: str,
        verbose: bool | None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._words, self._stream, self._clock = words, stream or sys.stderr, clock
        self._live = _is_watched(self._stream)
        self._patience = 0.0 if verbose else PATIENCE
        self._silent = not (verbose or self._live)
        self._begun: float | None = None
        self._said = self._paced = False

    def __call__(self, progress: Progress | None) -> None:
        """Take in how far the training is. None: it is finished."""
        if self._silent:
            return
        if progress is None:
            if self._said:
                self._write("\r" if self._live else "", f"the shared model is trained: {STEPS} steps", "\n")
            self._begun, self._said, self._paced = None, False, False
            return
        now = self._clock()
        self._begun = now if self._begun is None else self._begun
        if now - self._begun < self._patience:
            return
        if not self._said:
            self._write("", self._words, "\n")
            self._said = True
        made, follow = progress.made, progress.follow
        left = f", about {(now - self._begun) * follow / made:.0f} s left" if made else ""
        if self._live:
            self._write("\r", f"step {made} of {made + follow or STEPS}{left}", "")
        elif left and now - self._begun >= PATIENCE and not self._paced:
            self._write("", f"step {made} of {made + follow}{left}", "\n")
            self._paced = True

    def _write(self, before: str, text: str, end: str) -> None:
        self._stream.write(f"{before}{text:<48}{end}" if self._live else f"{before}{text}{end}")
        self._stream.flush()


def _is_watched(stream: TextIO) -> bool:
    """Whether a person sees this stream as it grows: a terminal, or the output of a notebook."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")

"""Rounds of training of the shared model: counts, gradients and report cards, charged to the shared ledger.

A round is cut into pieces, so that answers can be given in between. Every release is charged and written down as soon
as it is made. A crash or a stop costs at most the release that was being made. The round continues from there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from indknn.core import accounting, statistics, training
from indknn.core.noise import Noise
from indknn.core.releases import Gradient, ModelShown, Release, TallyRelease
from indknn.ledger import SHARED
from indknn.models import SharedModel
from indknn.models.feature_map import FeatureMap
from indknn.models.shared_model import Due
from indknn.records.protocol import AnyShard, Filled
from indknn.records.slices import Arguments
from indknn.types import Cohort, FloatArray

_MOMENT = 0.002  # seconds


@dataclass(frozen=True)
class Progress:
    """How far a round is: gradients made in it, and gradients still to come."""

    made: int
    follow: int


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
        counts = self._shard.headcount(model.cohort, cells, since, scale, units, SHARED)
        return TallyRelease(0, scale, statistics.noisy_tally(counts, scale, self._noise))

    def _price(self, due: Due) -> tuple[int, int]:
        """The noise on the cells of a count or a card, and the most that anybody pays for it."""
        price = self._model.price(due)
        return statistics.tally_scale(price), accounting.to_units(price)

"""Rounds of training of the shared model: counts, gradients and report cards, charged to the shared ledger.

A round is cut into pieces, so that answers can be given in between. Every release is charged and written down as soon
as it is made. A crash or a stop costs at most the release that was being made. The round continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from indknn.core import accounting, statistics, training
from indknn.core.noise import Noise
from indknn.core.releases import Gradient, Release, TallyRelease
from indknn.ledger import SHARED
from indknn.models import SharedModel
from indknn.models.feature_map import FeatureMap
from indknn.models.shared_model import CLIP, Due
from indknn.records.derived import Derived
from indknn.records.shard import Shard

_MOMENT = 0.002  # seconds


@dataclass(frozen=True)
class Progress:
    """How far a round is: gradients made, and gradients still to come."""

    made: int
    follow: int


def round_of_training(
    model: SharedModel, shards: Sequence[Shard], noise: Noise, released: Callable[[Release], None]
) -> Iterator[Progress]:
    """Make all releases that are due, one after the other. The caller must hold all locks when it takes the next piece.

    `released` gives a release to the model and makes it durable.
    """
    made, derived = 0, _Derivations(model, shards)
    while (due := model.due()) is not None:
        if due == "step" and not model.mapped:
            mapped = _beside(model.make_map)
            while not wait([mapped], _MOMENT).done:
                yield Progress(made, model.follow)
            model.take_map(mapped.result())
        while derived.incomplete(due):
            yield Progress(made, model.follow)
        if due == "step":
            while _more_of_gradient(model, shards, derived.of(due)):
                yield Progress(made, model.follow)
            released(_gradient(model, shards, noise, derived.of(due)))
            made += 1
        else:
            released(_tally(due, model, shards, noise, derived.of(due)))
        yield Progress(made, model.follow)


def _beside(work: Callable[[], FeatureMap]) -> Future[FeatureMap]:
    """Run this in another thread, while answers are given."""
    threads = ThreadPoolExecutor(1, "map")
    made = threads.submit(work)
    threads.shutdown(wait=False)  # it ends with its work
    return made


class _Derivations:
    """What a release needs to know about every record: features for gradients, cells for a report card."""

    def __init__(self, model: SharedModel, shards: Sequence[Shard]):
        self._model, self._shards = model, shards
        self._due: Due | None = None
        self._found: list[Derived] = []

    def of(self, due: Due) -> list[Derived] | None:
        """For each shard. None if a release needs nothing."""
        if due == "count":
            return None
        if self._due != due:
            rule = self._model.rule(due)
            self._due, self._found = due, [shard.derived(rule) for shard in self._shards]
        return self._found

    def incomplete(self, due: Due) -> bool:
        """Process some more records. Returns whether there were any left."""
        left = [derived.fill() for derived in self.of(due) or ()]
        return any(left)


def _more_of_gradient(model: SharedModel, shards: Sequence[Shard], rows: list[Derived] | None) -> bool:
    """Compute a part of the next gradient. Returns whether there was more to do."""
    step = model.weights, CLIP, model.scale, accounting.to_units(model.reserve), SHARED
    return any(shard.prepare_gradient(each, *step) for shard, each in zip(shards, rows or (), strict=True))


def _gradient(model: SharedModel, shards: Sequence[Shard], noise: Noise, rows: list[Derived] | None) -> Gradient:
    epoch, scale, reserve = model.since, model.scale, accounting.to_units(model.reserve)
    if model.step == 0:
        epoch = max(shard.epoch for shard in shards) + 1  # records that are added from now on are newcomers
        for shard in shards:
            shard.epoch = min(epoch, shard.max_epoch)
    parts = [
        shard.gradient(each, model.weights, CLIP, scale, reserve, SHARED)
        for shard, each in zip(shards, rows or (), strict=True)
    ]
    noisy = training.noisy_gradient(np.sum(parts, axis=0), scale, noise)
    return Gradient(model.step, model.follow - 1, epoch, scale, noisy.ravel())


def _tally(
    due: Due, model: SharedModel, shards: Sequence[Shard], noise: Noise, cells: list[Derived] | None
) -> TallyRelease:
    price = model.price(due)
    scale, units = statistics.tally_scale(price), accounting.to_units(price)
    n_cells, since = model.n_cells(due), model.since if model.ready else 0
    counts = [
        shard.tally(cells[i] if cells else None, n_cells, since, scale, units, SHARED) for i, shard in enumerate(shards)
    ]
    return TallyRelease(int(due == "card"), scale, statistics.noisy_tally(np.sum(counts, axis=0), scale, noise))

"""The shared model of a durable store: rounds of training with answers in between, and public rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indknn.answering.predictor import MayShow, at_once
from indknn.answering.trainer import Progress
from indknn.core.releases import PublicRows
from indknn.errors import InvalidInputError
from indknn.models.shared_model import MOST_ROWS
from indknn.store.opening import State

if TYPE_CHECKING:
    from indknn.store.store import Store


def train(store: Store, may_show: MayShow = at_once) -> Iterator[Progress]:
    """Begin a round, or count newcomers to see whether one is needed, and run it to its end."""
    with store.computing() as state:
        state.engine.start_round()
    yield from go_on(store, may_show)


def go_on(store: Store, may_show: MayShow = at_once) -> Iterator[Progress]:
    """Continue the current round, piece by piece, each durable. It ends early if the store was read again.

    It also ends if the model is finished and `may_show` says that it must not be shown yet.
    """
    with store.computing() as state:
        generation, pieces = store.generation, state.engine.predictor.training(may_show)
    while True:
        with store.computing() as state:
            progress = next(pieces, None) if store.generation == generation else None
        if progress is None:
            return
        yield progress
        if not state.journal.background:  # otherwise the next commit also folds
            store.fold_if_long()


def public_rows(state: State, X: npt.ArrayLike, y: npt.ArrayLike | None) -> PublicRows:
    """Distinct rows in the form of records. A draft takes any number of features."""
    settings = state.engine.settings
    if y is not None and not settings.classes:
        raise InvalidInputError("public rows can have labels only if the classes are known: give classes or a schema")
    if state.draft and np.ndim(X) == 2:
        settings = replace(settings, n_features=np.shape(X)[1])
    vectors, labels = settings.prepare_public(X, y)
    _, first = np.unique(vectors.values, axis=0, return_index=True)
    kept = np.sort(first)[:MOST_ROWS]
    return PublicRows(False, 0, np.ascontiguousarray(vectors.values[kept]), None if labels is None else labels[kept])

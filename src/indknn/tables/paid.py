"""A schema from noisy counts that people have paid for, where there is no public sample (`grid`).

All of this is post-processing of the counts. What does not stand well above their noise is taken for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from indknn.tables import grid
from indknn.tables.categorical import Category
from indknn.tables.column import Column, Ignored
from indknn.tables.numeric import PIECES
from indknn.tables.sample import BLANKS, LISTED, WIDEST, Inferred, number_from
from indknn.tables.schema import Schema
from indknn.tables.values import bucket_name
from indknn.types import FloatArray

CLEAR = 5.0
"""So many standard deviations of the noise make a count real. By noise alone, one table of fourteen columns in two
hundred has such a count where nothing is."""
_COMMON = 0.3  # values that are common enough to be listed must have this share of all texts
_STRETCHES = (1, 2, 4, 8)
_VISIBLE = 1.5  # within a coarse cell that is real, fine cells above this share its count


def schema_from(
    names: Sequence[str],
    counts: FloatArray,
    noise: float,
    *,
    label: str | None = None,
    classes: tuple[Any, ...] = (),
    owner: str | None = None,
    record_id: str | None = None,
) -> Inferred:
    """A schema for columns of these names, from the noisy counts of their cells and the deviation of the noise."""
    pieces = max(1, min(PIECES, WIDEST // max(len(names), 1) - 1))
    columns, notes = (
        {},
        ["made from noisy counts; where you know the bounds or the values of a column, write them here"],
    )
    for name, cells in zip(names, counts.reshape(len(names), grid.CELLS), strict=True):
        columns[name], note = _column(cells, noise, pieces)
        notes += [f"{name}: {note}"] * bool(note)
    return Inferred(Schema(columns, label, classes, owner, record_id, BLANKS), tuple(notes))


def _column(cells: FloatArray, noise: float, pieces: int) -> tuple[Column, str]:
    coarse = cells[grid.FIRST_COARSE : grid.FIRST_FINE]
    fine, buckets = cells[grid.FIRST_FINE : grid.FIRST_BUCKET], cells[grid.FIRST_BUCKET :]
    numbers, texts = _real(coarse, noise), np.where(buckets > CLEAR * noise, buckets, 0.0)
    gaps = max(float(cells[grid.GAPS]), 0.0)
    if not numbers.any() and not texts.any():
        return Ignored(), "ignored, because no value of it stands above the noise"
    if numbers.sum() < texts.sum():
        return _category(texts, max(float(buckets.sum()), texts.sum()), gaps)
    shares = _refined(numbers, fine, noise)
    if np.count_nonzero(shares) < 2:
        return Ignored(), "ignored, because it looks constant to two digits; if it is not, write its bounds by hand"
    return number_from(grid.fine_values(), shares, pieces), ""


def _real(coarse: FloatArray, noise: float) -> FloatArray:
    """The counts that noise does not explain: of single cells, then of wider and wider stretches of the rest.

    What is spread over many cells, none of which stands out, is found by its sum.
    """
    real, rest = np.zeros(len(coarse)), coarse.copy()
    for width in _STRETCHES:
        least = CLEAR * noise * np.sqrt(width)
        while (sums := np.convolve(rest, np.ones(width), "valid")).max() > least:
            here = slice(int(sums.argmax()), int(sums.argmax()) + width)
            positive = np.maximum(rest[here], 0.0)
            real[here] += sums.max() * positive / positive.sum()
            rest[here] = 0.0
    return real


def _refined(coarse: FloatArray, fine: FloatArray, noise: float) -> FloatArray:
    """The counts of real coarse cells, shared out among their fine cells."""
    inside, shares = grid.coarse_of_fine(), np.zeros(len(fine))
    for cell in np.flatnonzero(coarse).tolist():
        here = np.flatnonzero(inside == cell)
        seen = np.where(fine[here] > _VISIBLE * noise, fine[here], 0.0)
        seen = seen if seen.any() else np.eye(len(here))[int(fine[here].argmax())]
        shares[here] = coarse[cell] * seen / seen.sum()
    return shares


def _category(texts: FloatArray, rows: float, gaps: float) -> tuple[Column, str]:
    common = np.argsort(-texts, kind="stable")[: np.count_nonzero(texts)]
    if len(common) > LISTED or texts.sum() < _COMMON * rows:
        return Ignored(), "ignored, because it has too many different values"
    values = tuple(bucket_name(bucket) for bucket in common.tolist())
    shares = tuple(round(float(count / (rows + gaps)), 6) for count in texts[common])
    unnamed = f"{len(values)} common values, unnamed: each stands for a bucket of a public hash"
    return Category(values=values, shares=shares, buckets=grid.BUCKETS), unnamed

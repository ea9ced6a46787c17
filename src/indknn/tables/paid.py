"""Makes a schema from noisy counts that people have paid for, for use without a public sample (see `grid`).

Everything here is post-processing of the noisy counts, so it costs nothing more. A count that is not well above the
noise is treated as zero.
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
"""A count above this many standard deviations of the noise is treated as real. Noise alone produces such a count in
about one of two hundred tables with fourteen columns."""
_COMMON = 0.3  # the listed values together must have at least this share of all texts
_STRETCHES = (1, 2, 4, 8)
_VISIBLE = 1.5  # fine cells above this many deviations share the count of their coarse cell, if that one is real


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
    """A schema for these columns, from the noisy counts of their cells and the standard deviation of the noise."""
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
    """The counts that are too large to be noise.

    Single cells are tested first, then wider and wider stretches of the remaining cells. A stretch is tested by its
    sum. So values are also found that are spread over many cells, none of which is above the noise.
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
    """The counts of real coarse cells, divided among their fine cells."""
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

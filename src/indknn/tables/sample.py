"""Makes a schema from a public sample. It first computes statistics of the columns, then derives the schema from them.

`number_from` and `category_from` take counts, which may be exact or noisy. So a noisy histogram that people have paid
for can replace the sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn.tables.categorical import NO, YES, Category, YesNo
from indknn.tables.column import Column, Ignored
from indknn.tables.numeric import PIECES, Date, Number
from indknn.tables.schema import Schema
from indknn.tables.texts import Text
from indknn.tables.values import as_days, as_list, as_numbers, columns_of, day_text, is_missing
from indknn.types import FloatArray

BLANKS = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Texts that are taken for gaps in every column."""
LISTED, _RARE = 64, 5
"""The most listed values of a category, and how often a value must occur to be listed. All others share one place."""
WIDEST = 1024
"""About how many coordinates all numeric columns may have together. A wide table gets fewer pieces per column."""
_WORDS = 3
"""A column of mostly different values is text if its values have at least this many words on average."""


@dataclass(frozen=True)
class Inferred:
    """A schema, and notes on what its author should check."""

    schema: Schema
    notes: tuple[str, ...]


def infer(
    table: Any,
    *,
    label: str | None = None,
    owner: str | None = None,
    record_id: str | None = None,
    extractor: str | None = None,
) -> Inferred:
    """Make a schema from a **public** table. Its bounds and lists of values become public settings.

    >>> sample = {"age": [31, 45, 27, 60], "job": ["cook", "baker", "cook", ""], "y": ["a", "b", "a", "b"]}
    >>> found = infer(sample, label="y")
    >>> found.schema.classes, found.schema.used["job"].values
    (('a', 'b'), ('cook', 'baker'))
    """
    columns = columns_of(table)
    for role in filter(None, (label, owner, record_id)):
        if role not in columns:
            raise InvalidInputError(f"column {role!r} is missing: the table has only {', '.join(columns)}")
    values = {name: as_list(column) for name, column in columns.items()}
    if not any(values.values()):
        raise InvalidInputError("a public sample must have at least one row")
    blanks = tuple(text for text in BLANKS if text == "" or any(text in column for column in values.values()))
    found, notes = {}, []
    features = {name: column for name, column in values.items() if name not in {label, owner, record_id}}
    pieces = max(1, min(PIECES, WIDEST // max(len(features), 1) - 1))
    for name, column in features.items():
        found[name], note = _column(column, name, blanks, extractor, pieces)
        notes += [f"{name}: {note}"] * bool(note)
    classes: tuple[Any, ...] = ()
    if label is not None:
        seen = {value for value in values[label] if not is_missing(value, blanks)}
        classes = _as_classes(seen)
        notes.append(f"{label}: the classes are those of the sample; add every other label that can occur")
    return Inferred(Schema(found, label, classes, owner, record_id, blanks), tuple(notes))


def number_from(values: FloatArray, counts: FloatArray, pieces: int = PIECES) -> Number:
    """A column of numbers, from a histogram: the values in rising order, and how often each occurs."""
    kept = counts > 0
    values, counts = values[kept], counts[kept].astype(np.float64)
    edges = knots_from(values, counts, pieces)
    low, high = edges[:-1], edges[1:]
    passed = np.clip((values[:, None] - low) / (high - low), 0.0, 1.0)
    means = counts @ passed / counts.sum()
    return Number(
        bounds=(float(edges[0]), float(edges[-1])),
        knots=tuple(map(float, edges[1:-1])),
        means=tuple(round(float(mean), 4) for mean in means),
    )


def knots_from(values: FloatArray, counts: FloatArray, pieces: int) -> FloatArray:
    """The bounds and the knots between them. Knots are quantiles, but one value takes up at most one piece.

    In a column that is mostly zero, plain quantiles would all be zero. So the counts of common values are reduced until
    no value has more than the weight of one piece.

    >>> knots_from(np.array([0.0, 1.0, 2.0, 3.0, 9.0]), np.array([900.0, 10, 10, 10, 10]), 3).tolist()
    [0.0, 1.0, 3.0, 9.0]
    """
    if len(values) <= pieces + 1:
        return values
    weights = counts
    for _ in range(50):
        weights = np.minimum(counts, weights.sum() / pieces)
    middle = (np.cumsum(weights) - weights / 2.0) / weights.sum()
    inner = values[np.searchsorted(middle, np.arange(1, pieces) / pieces).clip(max=len(values) - 1)]
    return np.unique(np.concatenate([values[:1], inner, values[-1:]]))


def category_from(counts: Mapping[str, float], rows: float) -> Category | None:
    """A category from the counts of its values. None if no value is common enough."""
    least = min(_RARE, max(1.0, rows / 200))
    common = sorted(((n, value) for value, n in counts.items() if n >= least), key=lambda pair: (-pair[0], pair[1]))
    listed = common[:LISTED]
    if not listed:
        return None
    shares = tuple(round(n / rows, 6) for n, _ in listed)
    return Category(values=tuple(value for _, value in listed), shares=shares)


def _column(
    values: list[Any], name: str, blanks: Collection[str], extractor: str | None, pieces: int
) -> tuple[Column, str]:
    """The kind of this column, and a note for the author of the schema, which may be empty."""
    present = [value for value in values if not is_missing(value, blanks)]
    if not present:
        return Ignored(), "ignored, because it is empty in the sample"
    # Numbers come first: a count that is 0 or 1 in the sample may be 2 in other rows, and yes or no would refuse it.
    for read, kind in ((as_numbers, "number"), (_yes_no, "yesno"), (as_days, "date")):
        try:
            x = read(present, name, blanks)
        except InvalidInputError:
            continue
        return _numeric(x[np.isfinite(x)], kind, pieces)
    return _textual(Counter(str(value) for value in present), len(values), extractor)


def _textual(counts: Counter[str], rows: int, extractor: str | None) -> tuple[Column, str]:
    if len(counts) == 1:
        return Ignored(), "ignored, because it is constant in the sample"
    if len(counts) <= max(50, counts.total() / 2):
        category = category_from(counts, rows)
        return (Ignored(), "ignored, because no value is common") if category is None else (category, "")
    if np.mean([len(text.split()) for text in counts]) < _WORDS:
        return Ignored(), "ignored, because almost every row has a value of its own"
    if extractor is None:
        return Ignored(), "ignored, because it looks like text and no extractor was named"
    return Text(extractor=extractor), ""


def _yes_no(values: list[Any], name: str, blanks: Collection[str]) -> FloatArray:
    """1 for yes and 0 for no. Both words must be from the same pair, such as Y and N. F and N is refused."""
    if {str(value).lower() for value in values} not in [set(pair) for pair in zip(YES, NO, strict=True)]:
        raise InvalidInputError(f"column {name!r} does not say yes and no")
    return YesNo().read(values, name, blanks).astype(np.float64)


def _numeric(x: FloatArray, kind: str, pieces: int) -> tuple[Column, str]:
    values, counts = np.unique(x, return_counts=True)
    if len(values) < 2:
        return Ignored(), "ignored, because it is constant in the sample"
    if len(x) > 50 and (np.diff(x) == 1.0).all():
        return Ignored(), "ignored, because it numbers the rows"
    if kind == "yesno":
        return YesNo(share=round(float(x.mean()), 4)), ""
    number = number_from(values, counts.astype(np.float64), pieces)
    if kind == "number":
        return number, ""
    knots = tuple(day_text(day) for day in number.knots or ())
    bounds = day_text(number.bounds[0]), day_text(number.bounds[1])
    return Date(bounds=bounds, knots=knots, means=number.means), ""


def _as_classes(seen: set[Any]) -> tuple[Any, ...]:
    """The labels of the sample, in order. If all are whole numbers, they become numbers."""
    texts = sorted(str(int(value) if isinstance(value, float) and value.is_integer() else value) for value in seen)
    whole = all(text.lstrip("-").isdigit() for text in texts)
    return tuple(sorted(map(int, texts))) if whole else tuple(texts)

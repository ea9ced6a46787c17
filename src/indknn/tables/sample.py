"""A schema from a public sample: statistics of its columns first, then what follows from them.

`number_from` and `category_from` take counts, exact or noisy, so that a histogram that people have paid for can take
the place of the sample.
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
"""Texts that are gaps wherever they occur."""
LISTED, _RARE = 64, 5
"""A category has at most so many listed values, each of which occurs so often. The others share a place."""
WIDEST = 1024
"""About how many coordinates the numbers of a wide table have together: it gets fewer pieces per column."""
_WORDS = 3
"""From so many words on, on average, a column that hardly repeats itself is text."""


@dataclass(frozen=True)
class Inferred:
    """A schema, and what its author should look at."""

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
    """A number from a histogram: rising values, and how often each occurs."""
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
    """The bounds and the knots: quantiles, where a single value counts for one piece at most.

    In a column that is mostly zero, plain quantiles would all be zero. So what is common is counted less, until no
    value has more than its share.

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
    """A category from the counts of its values; None if none is common enough."""
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
    """What this column is, and what to tell of it."""
    present = [value for value in values if not is_missing(value, blanks)]
    if not present:
        return Ignored(), "ignored, because it is empty in the sample"
    # Numbers first: a count that is 0 or 1 in the sample may be 2 elsewhere, where yes or no would be refused.
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
    """1 for yes and 0 for no, where both are from one pair of words: F and N are not."""
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
    """The labels that were seen, in order; whole numbers as numbers."""
    texts = sorted(str(int(value) if isinstance(value, float) and value.is_integer() else value) for value in seen)
    whole = all(text.lstrip("-").isdigit() for text in texts)
    return tuple(sorted(map(int, texts))) if whole else tuple(texts)

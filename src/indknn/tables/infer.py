"""Makes a schema from a public sample, and checks whether a table fits a schema.

`number_from` and `category_from` take counts, which may be exact or noisy. So a noisy histogram that people have paid
for can replace the sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from indknn.core.inputs import as_labels, as_whole, lookup_of
from indknn.core.targets import as_bounds
from indknn.errors import InvalidInputError, meant
from indknn.tables.columns import NO, PIECES, YES, Category, Column, Date, Ignored, Number, Text, YesNo
from indknn.tables.read import Columns, columns_of, is_table
from indknn.tables.schema import Schema
from indknn.tables.values import as_days, as_list, as_numbers, day_text, is_missing
from indknn.types import FloatArray

BLANKS = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Texts that are taken for gaps in every column."""
LISTED, _RARE = 64, 5
"""The most listed values of a category, and how often a value must occur to be listed. All others share one place."""
WIDEST = 1024
"""About how many coordinates all numeric columns may have together. A wide table gets fewer pieces per column."""
_WORDS = 3
"""A column of mostly different values is text if its values have at least this many words on average."""
MOST_CLIPPED, MOST_UNLISTED = 0.05, 0.25
"""If more than this share of a column is beyond the bounds, or not listed, the user is told."""
_HEAVY = 0.5
_LABELS, _CLASSES = {"y", "label", "target", "class", "outcome", "result"}, 20
"""Usual names of the label, and the most classes that a column which looks like one has."""
_FAR = 1.0
"""A number is far beyond its bounds if it is further away than they are from each other."""
_FEWEST = 50
"""With fewer queries than this, there is no warning."""


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
    expires: str | None = None,
    epsilon: str | None = None,
    extractor: str | None = None,
    target: str = "class",
    classes: Sequence[Any] | None = None,
    bounds: Any = None,
) -> Inferred:
    """Make a schema from a **public** table. Its bounds and lists of values become public settings.

    `owner`, `record_id`, `expires` and `epsilon` may be columns that only the private tables have. With target="number"
    the label is a number. Its `classes` or `bounds` are those of the sample, unless you give them.

    >>> sample = {"age": [31, 45, 27, 60], "job": ["cook", "baker", "cook", ""], "y": ["a", "b", "a", "b"]}
    >>> found = infer(sample, label="y")
    >>> found.schema.classes, found.schema.used["job"].values
    (('a', 'b'), ('cook', 'baker'))
    """
    columns = columns_of(table)
    if label is not None and label not in columns:
        raise InvalidInputError(f"no column {label!r}: the table has only {', '.join(columns)}{meant(label, columns)}")
    values = {name: as_list(column) for name, column in columns.items()}
    if not any(values.values()):
        raise InvalidInputError("a public sample must have at least one row")
    blanks = tuple(text for text in BLANKS if text == "" or any(text in column for column in values.values()))
    found: dict[str, Column] = {}
    notes = list(_absent(columns, owner, record_id, expires))
    features = {name: one for name, one in values.items() if name not in {label, owner, record_id, expires, epsilon}}
    pieces = max(1, min(PIECES, WIDEST // max(len(features), 1) - 1))
    for name, column in features.items():
        found[name], note = _column(column, name, blanks, extractor, pieces)
        notes += [f"{name}: {note}"] * bool(note)
    if features and all(isinstance(column, Ignored) for column in found.values()):
        raise InvalidInputError(f"no column of the sample can be a feature: {'; '.join(notes)}")
    made = Inferred(Schema(found, label, (), owner, record_id, blanks, expires, epsilon), tuple(notes))
    given = bounds if target == "number" else classes
    return made if label is None else _with_target(made, label, values[label], target, given)


def _with_target(made: Inferred, label: str, column: list[Any], target: str, given: Any) -> Inferred:
    """The schema with the classes or the bounds of its label, which are those of the sample unless they are given."""
    schema, blanks = made.schema, made.schema.blanks
    if given is not None:
        known: dict[str, Any] = {"bounds": as_bounds(given)} if target == "number" else {"classes": tuple(given)}
        return replace(made, schema=replace(schema, **known))
    if target == "number":
        schema = replace(schema, bounds=_bounds_of(column, label, blanks))
        note = f"{label}: the bounds are those of the sample; numbers outside are cut, so make them wide enough"
    else:
        schema = replace(schema, classes=_classes_of(column, blanks))
        note = f"{label}: the classes are those of the sample; add every other label that can occur"
    return Inferred(schema, (*made.notes, note))


def _classes_of(column: list[Any], blanks: tuple[str, ...]) -> tuple[Any, ...]:
    """The labels in a column, sorted. If all are whole numbers, they are numbers."""
    seen = set(as_labels([value for value in column if not is_missing(value, blanks)]).tolist())
    texts = (str(int(one) if isinstance(one, float) and one.is_integer() else one) for one in seen)
    return tuple(sorted(as_whole(texts)))


def _bounds_of(column: list[Any], name: str, blanks: tuple[str, ...]) -> tuple[float, float]:
    """The lowest and the highest number in a column."""
    said = as_numbers(column, name, blanks)
    return as_bounds((np.nanmin(said), np.nanmax(said)))


def _absent(columns: Columns, *names: str | None) -> Iterator[str]:
    """A note for each of these names that the sample lacks. A name that is almost there is a mistake."""
    for name in dict.fromkeys(names):
        if name is None or name in columns:
            continue
        if near := get_close_matches(name, columns, n=1, cutoff=0.8):
            raise InvalidInputError(f"column {name!r} is missing; did you mean {near[0]!r}?")
        yield f"{name}: not in the sample; the tables of records must have it"


def likely_labels(table: Columns) -> list[str]:
    """At most three columns of a **public** table that may hold the label: few values, each of them common."""
    found = []
    for name, column in reversed(table.items()):  # mostly it is the last
        values = [str(value) for value in as_list(column) if not is_missing(value, BLANKS)]
        if 1 < len(set(values)) <= min(_CLASSES, len(values) / 2):
            found.append(name)
    return sorted(found, key=lambda name: name.lower() not in _LABELS)[:3]


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


@dataclass(frozen=True)
class Finding:
    """The result of one check: whether it is fine, what was checked, and what was found."""

    ok: bool
    what: str
    seen: str


def check(schema: Schema, table: Any) -> Iterator[Finding]:
    """Check every column of a public sample against the schema. The sample need not have owners and record ids."""
    columns = columns_of(table)
    rows = max((len(column) for column in columns.values()), default=0)
    known = {*schema.columns, *schema.roles}
    wrong = [name for name in filter(None, (*schema.used, schema.label)) if name not in columns]
    extra = [name for name in columns if name not in known]
    for name in wrong:
        yield Finding(False, name, "missing in the sample")
    for name in extra:
        yield Finding(False, name, "not in the schema: list it there as ignored, or drop it")
    if wrong or extra or not rows:
        yield from [] if rows else [Finding(False, "sample", "it has no rows")]
        return
    features = {name: columns[name] for name in schema.used}
    try:
        X, outside = schema.encode(features), schema.outside(features)
    except InvalidInputError as error:
        yield Finding(False, "values", str(error))
        return
    middle = X[0]  # subtracted, so that the variance of a constant column is exactly 0
    lengths = {name: float(((X[:, part] - middle[part]).var(axis=0)).sum()) for name, part in schema.parts.items()}
    for name, share in outside.items():
        yield _about_column(schema, name, columns[name], share, lengths)
    if schema.label is not None:
        yield _about_label(schema, columns[schema.label])
    yield Finding(True, "vectors", f"{schema.n_features} numbers from {len(schema.used)} columns, {rows:,} rows")


def _about_column(schema: Schema, name: str, column: Any, outside: float, lengths: dict[str, float]) -> Finding:
    share = lengths[name] / max(sum(lengths.values()), 1e-12)
    gaps = np.mean([is_missing(value, schema.blanks) for value in as_list(column)])
    seen = f"{schema.columns[name].kind}, {share:.0%} of the distance between rows"
    seen += f", {gaps:.0%} gaps" if gaps else ""
    seen += f", {outside:.1%} beyond the bounds or not listed" if outside else ""
    if lengths[name] == 0.0:
        return Finding(False, name, f"{seen}; it is the same in all rows: list it as ignored")
    heavy = share > _HEAVY and len(lengths) > 2
    ok = outside <= most_outside(schema.columns[name]) and not heavy
    return Finding(ok, name, seen + ("; it outweighs all others" if heavy else ""))


def most_outside(column: Column) -> float:
    """The share of values that may be beyond the bounds, or not listed, without a warning."""
    return MOST_UNLISTED if isinstance(column, Category) else MOST_CLIPPED


def _about_label(schema: Schema, column: Any) -> Finding:
    seen = {value for value in as_list(column) if not is_missing(value, schema.blanks)}
    if schema.bounds is not None:
        low, high = schema.bounds
        said = as_numbers(as_list(column), str(schema.label), schema.blanks)
        cut = int(((said < low) | (said > high)).sum())
        return Finding(not cut, "label", f"{cut} numbers are outside the bounds {low:g} to {high:g}")
    if not schema.classes:
        return Finding(False, "label", "the schema lists no classes, so they would be taken from private labels")
    known = lookup_of(map(str, schema.classes))
    strangers = sorted(str(value) for value in seen if value not in known)
    if strangers:
        return Finding(False, "label", f"{strangers[0]!r} is not among the classes of the schema")
    return Finding(True, "label", f"{len(seen)} of the {len(schema.classes)} classes are in the sample")


class Outside:
    """Counts how many values are beyond the bounds or not listed, in several tables. Without a schema there are none.

    >>> from indknn.tables import Number
    >>> outside = Outside(Schema({"age": Number(bounds=(0, 100))}))
    >>> outside.see({"age": [20, 180] * 30})
    >>> print(*outside.advice())
    50% of the queries are beyond the bounds of column 'age' and were clipped: are they in the unit of the schema?
    """

    def __init__(self, schema: Schema | None):
        self._columns = {} if schema is None else schema.used
        self._schema, self._rows = schema, 0
        self._outside, self._far = dict.fromkeys(self._columns, 0.0), dict.fromkeys(self._columns, 0.0)

    def see(self, table: Any) -> None:
        """Count the values of these queries. The error about a wrong column names the column."""
        if self._schema is not None:
            self.take(self._schema.read(table))

    def take(self, values: Columns) -> None:
        """Count values that were read already, as `Schema.encode` shows them."""
        rows = len(next(iter(values.values()), ()))
        for name, column in self._columns.items():
            self._outside[name] += column.outside(values[name]) * rows
            self._far[name] += column.outside(values[name], _FAR) * rows
        self._rows += rows

    def notes(self, more: bool = True) -> list[Warning]:
        """How many values of records are far beyond the bounds or not listed. For the person who adds the records.

        Values a little beyond them count only if they are many: the bounds of a sample leave some out.

        >>> from indknn.tables import Number
        >>> schema = Schema({"age": Number(bounds=(0, 100))})
        >>> outside = Outside(schema)
        >>> _ = schema.encode({"age": [20, 1e23]}, outside.take)
        >>> print(*outside.notes())
        values beyond the public bounds count as the nearest bound: 1 in 'age'
        """
        found: list[Warning] = []
        for listed, text in (
            (False, "values beyond the public bounds count as the nearest bound"),
            (True, "values that the schema does not list count as one other value"),
        ):
            names = [name for name, column in self._columns.items() if isinstance(column, Category) == listed]
            counts = {name: more * self._outside[name] if self._many(name) else self._far[name] for name in names}
            many = ", ".join(f"{round(count):,} in {name!r}" for name, count in counts.items() if round(count))
            found += [UserWarning(f"{text}: {many}")] if many else []
        return found

    def _many(self, name: str) -> bool:
        return self._rows >= _FEWEST and self._outside[name] > most_outside(self._columns[name]) * self._rows

    def advice(self) -> list[Warning]:
        """A warning for every column of queries with many values beyond the bounds or not listed, then for odd ones."""
        found: list[Warning] = []
        for name, count in self._outside.items():
            column = self._columns[name]
            if not self._many(name):
                continue
            text = f"are beyond the bounds of column {name!r} and were clipped: are they in the unit of the schema?"
            if isinstance(column, Category):
                text = f"have values in column {name!r} that the schema does not list: are they spelled as there?"
            found.append(UserWarning(f"{count / self._rows:.0%} of the queries {text}"))
        return found + self.notes(more=False)


def about_queries(schema: Schema, table: Any) -> list[Warning]:
    """The warnings for one table. The list is empty if the queries are vectors."""
    if not is_table(table):
        return []
    outside = Outside(schema)
    outside.see(schema.split_queries(table).features)
    return outside.advice()


TEMPLATE = """\
# What the columns of your tables are. Everything in here is public: it is kept with the settings of a store.
# Write down what you know about such tables in general. Never take it from private rows.

# Which column holds the label, and all labels that can occur.
label: {column: diagnosis, classes: [healthy, ill]}
# Whose row it is (one person may have many), and your own id of the row. Leave them out if there are none.
owner: patient
record_id: visit
# The day or time (UTC) from which a row takes no further part and is erased.
expires: delete_on
# Texts that stand for a gap.
blanks: ["", "?"]

columns:
  # A number: what is beyond the bounds is clipped. Knots are values at which its effect may change, such as ages that
  # matter; without them there are 12 pieces of equal length.
  age: {kind: number, bounds: [0, 110], knots: [18, 30, 45, 60, 75]}
  # A number with a long tail: pieces of equal ratio.
  income: {kind: number, bounds: [0, 1000000], scale: log}
  # A gap has a place of its own. Or it becomes a value (missing: 120), or is refused (missing: refuse).
  pressure: {kind: number, bounds: [60, 240], missing: refuse}
  # A category: every listed value has a place, and all others share one.
  ward: {kind: category, values: [surgery, medicine, emergency]}
  # A category with an order: neighbours in the list are similar.
  pain: {kind: ordered, values: [none, mild, strong, unbearable]}
  # Yes or no, true or false, 1 or 0; or in other words.
  smoker: {kind: yesno}
  insured: {kind: yesno, yes: [ja], no: [nein]}
  # A day.
  admitted: {kind: date, bounds: [2020-01-01, 2030-12-31]}
  # A text, as a public model sees it: a name that sentence-transformers knows, or a folder. The width is the length
  # of its vectors.
  # complaint: {kind: text, extractor: all-MiniLM-L6-v2, width: 384}
  # A column that plays no part. A column that is not listed at all is refused.
  remarks: {kind: ignored}
"""
"""A schema to fill in by hand."""

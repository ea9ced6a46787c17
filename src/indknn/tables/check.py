"""Checks whether a schema fits a public sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn.tables.categorical import Category
from indknn.tables.column import Column
from indknn.tables.schema import Schema
from indknn.tables.values import as_list, columns_of, is_missing, lookup_of

MOST_CLIPPED, MOST_UNLISTED = 0.05, 0.25
"""If more than this share of a column is beyond the bounds, or not listed, the user is told."""
_HEAVY = 0.5


@dataclass(frozen=True)
class Finding:
    """The result of one check: whether it is fine, what was checked, and what was found."""

    ok: bool
    what: str
    seen: str


def check(schema: Schema, table: Any) -> Iterator[Finding]:
    """Check every column of a public sample against the schema."""
    columns = columns_of(table)
    rows = max((len(column) for column in columns.values()), default=0)
    known = {*schema.columns, *schema.roles}
    wrong = [name for name in (*schema.used, *schema.roles) if name not in columns]
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
    if not schema.classes:
        return Finding(False, "label", "the schema lists no classes, so they would be taken from private labels")
    known = lookup_of(map(str, schema.classes))
    strangers = sorted(str(value) for value in seen if value not in known)
    if strangers:
        return Finding(False, "label", f"{strangers[0]!r} is not among the classes of the schema")
    return Finding(True, "label", f"{len(seen)} of the {len(schema.classes)} classes are in the sample")

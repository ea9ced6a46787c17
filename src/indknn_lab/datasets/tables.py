"""Encodes a table with its schema and writes a feature file, because experiments read feature files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn.tables import infer, read_schema
from indknn.tables.read import read_table

TABLES = {"adult": "Adult", "letters": "Letters", "shuttle": "Shuttle"}
"""The tables that the item `tables` uses. It looks for `<name>.csv.gz` in a folder of data or in its folder `tabular`.
"""
LABELS = {"adult": "income", "letters": "label", "shuttle": "label"}
PUBLIC, MOST_ASKED = 1000, 10_000
"""How many rows make a schema if none is given, and how many rows become queries: a fifth of all, but at most this."""
_FORM = 1  # part of the file name; increase it whenever the features of a table change


def find_tables(folder: Path) -> dict[str, Path]:
    """The known tables in a folder."""
    places = [(name, base / f"{name}.csv.gz") for name in TABLES for base in (folder / "tabular", folder)]
    return {name: path for name, path in places if path.is_file()}


def encoded(path: Path, into: Path, *, label: str | None = None, schema: Path | None = None) -> Path:
    """The feature file of a table. It is made if it does not exist yet.

    A fifth of the rows become queries, at most 10,000. The others are private records. Without a schema, one is
    inferred from 1,000 rows. These count as public and are neither queries nor records.
    """
    digest = hashlib.blake2b(repr((_FORM, label)).encode() + path.read_bytes(), digest_size=4)
    digest.update(schema.read_bytes() if schema else b"")
    made = into / f"{path.name.split('.', maxsplit=1)[0]}-{digest.hexdigest()}.npz"
    if not made.is_file():
        arrays = _encode(read_table(path), path, label, schema)
        into.mkdir(parents=True, exist_ok=True)
        beside = made.with_suffix(".part.npz")
        np.savez(beside, **arrays)
        beside.replace(made)
    return made


def _encode(columns: dict[str, Any], path: Path, label: str | None, schema: Path | None) -> dict[str, Any]:
    known = read_schema(schema) if schema else None
    label = label or (known.label if known else None)
    if label not in columns:
        raise InvalidInputError(f"{path}: the column of labels must be one of {', '.join(columns)}, got {label!r}")
    y = np.array([str(value) for value in columns[label]])
    order = np.random.default_rng(0).permutation(len(y))
    if known is None:
        public, order = order[:PUBLIC].tolist(), order[PUBLIC:]
        known = infer({name: [values[i] for i in public] for name, values in columns.items()}, label=label).schema
    X = known.encode({name: values for name, values in columns.items() if name not in known.roles}).astype(np.float32)
    asking, private = np.split(order, [min(len(order) // 5, MOST_ASKED)])
    return {"X_train": X[private], "y_train": y[private], "X_test": X[asking], "y_test": y[asking]}

"""Reads records and queries from npz, csv, parquet and Arrow files, some rows at a time. Also writes answers."""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.files import private, private_file
from indknn.errors import InvalidInputError
from indknn.tables.arrow import needs_arrow, stacked
from indknn.tables.files import read_pieces
from indknn.tables.schema import Schema

ROWS = 4096
FORMATS = (".npz", ".csv", ".parquet")
"""The formats for answers. Records and queries may also be in Arrow files."""
Answers: TypeAlias = tuple[list[Any], list[list[float]] | None]
"""Labels, and the probability of each class if it was asked for."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a csv, parquet or Arrow file mean. Without `features`, all remaining columns are features.

    `part` is for npz files with several tables. With `_train` the arrays are X_train, y_train and so on.
    """

    label: str = "y"
    owner: str = "owner"
    features: tuple[str, ...] = ()
    part: str = ""
    record: str = "record_id"

    def pick(self, header: list[str], path: Path) -> list[str]:
        """The feature columns, in order."""
        taken = {self.label, self.owner, self.record}
        chosen = list(self.features) or [name for name in header if name not in taken]
        missing = [name for name in chosen if name not in header]
        if missing or not chosen:
            raise InvalidInputError(f"{path}: no column {(missing or ['for features'])[0]!r}, only {', '.join(header)}")
        return chosen


@dataclass(frozen=True)
class Piece:
    """Some rows of a file: features, and labels, owners and record ids if the file has them."""

    first: int
    X: npt.NDArray[Any]
    y: npt.NDArray[Any] | None
    owners: Any
    record_ids: Any = None


def pieces(path: Path, columns: Columns = Columns(), rows: int = ROWS) -> Iterator[Piece]:
    """The file in pieces of at most `rows` rows."""
    if not path.is_file():
        raise InvalidInputError(f"{path} does not exist")
    readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet, ".arrow": _ipc, ".feather": _ipc}
    if path.suffix not in readers:
        raise InvalidInputError(f"{path} must end in one of {', '.join(readers)}")
    return readers[path.suffix](path, columns, rows)


def table_pieces(path: Path, schema: Schema, rows: int = ROWS) -> Iterator[Piece]:
    """The same for a store with a schema, which names the columns. An npz file holds vectors that the schema made."""
    if path.suffix == ".npz":
        yield from pieces(path, rows=rows)
        return
    first = 0
    for table in read_pieces(path, rows):
        split = schema.split(table)
        with naming(path, first):
            X = schema.encode(split.features)
        yield Piece(first, X, split.y, split.owners, split.record_ids)
        first += len(X)


@contextmanager
def naming(path: Path, first: int) -> Iterator[None]:
    """Add to an error the name of the file, and the row from which its row numbers are counted."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}{f', rows from {first}' if first else ''}: {error}") from None


def labels_in(found: Iterator[Piece], path: Path) -> npt.NDArray[Any]:
    """All labels that occur in these pieces of a file."""
    labels = [np.unique(piece.y) for piece in found if piece.y is not None]
    if not labels:
        raise InvalidInputError(f"{path} has no labels: an array y, or a column named by --label")
    return np.unique(np.concatenate(labels))


def digest(path: Path) -> str:
    """A digest of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def answers_in(path: Path, classes: Sequence[Any] | None = None) -> Iterator[Callable[[Answers], None]]:
    """A function that writes answers to a file: npz (array y), csv or parquet (column y).

    With `classes` it also writes the probability of each class: in columns p_CLASS, or in npz as the arrays proba and
    classes. A csv file gets every answer as soon as it was charged. The other formats are written at the end.
    """
    names = [f"p_{name}" for name in classes or ()]
    if path.suffix == ".csv":
        with open(path, "w", newline="", opener=private) as file:
            writer = csv.writer(file)
            writer.writerow(["y", *names])

            def write(some: Answers) -> None:
                labels, likely = some
                writer.writerows([y] if likely is None else [y, *likely[i]] for i, y in enumerate(labels))
                file.flush()

            yield write
        return
    kept: list[Answers] = []
    yield kept.append
    labels = [label for some, _ in kept for label in some]
    columns = [p for _, some in kept if some is not None for p in some]
    proba = np.array(columns, dtype=np.float64).reshape(len(columns), -1 if columns else len(names))
    if path.suffix == ".npz":
        more: dict[str, Any] = {} if classes is None else {"proba": proba, "classes": np.array(classes)}
        with private_file(path, "wb") as archive:
            np.savez(archive, y=np.array(labels), **more)
    else:
        pa, pq = needs_arrow("pyarrow"), needs_arrow("pyarrow.parquet")
        with private_file(path, "wb") as archive:
            pq.write_table(pa.table({"y": labels, **dict(zip(names, proba.T, strict=True))}), archive)


def _npz(path: Path, columns: Columns, rows: int) -> Iterator[Piece]:
    names = [f"{name}{columns.part}" for name in ("X", "y", "owners", "scale", "record_ids")]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as npz:
            X, y, owners, scale, record_ids = (npz.get(name) for name in names)
            held = ", ".join(npz.files)
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:  # TypeError for a single array
        raise InvalidInputError(f"{path}: not a readable npz file ({error})") from None
    if X is None or X.ndim != 2:
        raise InvalidInputError(f"{path}: needs a table {names[0]}, and for records {names[1]}; it has {held}")
    if X.dtype.kind not in "biuf":
        raise InvalidInputError(f"{path}: {names[0]} must hold numbers, got {X.dtype}")
    if X.dtype == np.int8 and scale is None and columns.part:  # a feature file: its values were scaled to int8
        raise InvalidInputError(f"{path}: {names[0]} is int8 and needs {names[3]}, one number per row")
    for name, column in zip(names[1:], (y, owners, scale, record_ids), strict=True):
        if column is not None and column.shape != (len(X),):
            got = len(column) if column.ndim == 1 else column.shape
            raise InvalidInputError(f"{path}: {name} must have one entry per row of {names[0]}: {len(X)}, got {got}")
    for first in range(0, len(X), rows):
        part = slice(first, first + rows)
        block = X[part] if scale is None else X[part].astype(np.float64) * scale[part, None]
        yield Piece(first, block, *(None if column is None else column[part] for column in (y, owners, record_ids)))


def _csv(path: Path, columns: Columns, rows: int) -> Iterator[Piece]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or [])
        if not header:
            raise InvalidInputError(f"{path}: empty: it needs a line of column names")
        features = columns.pick(header, path)
        first, block = 0, []
        for line in reader:
            block.append(line)
            if len(block) == rows:
                yield _csv_piece(path, columns, features, header, first, block)
                first, block = first + rows, []
        if block:
            yield _csv_piece(path, columns, features, header, first, block)


def _csv_piece(
    path: Path, columns: Columns, features: list[str], header: list[str], first: int, block: list[dict[str, str]]
) -> Piece:
    rows = [[_number(line[name]) for name in features] for line in block]
    for i, (line, row) in enumerate(zip(block, rows, strict=True), start=first):
        if None in line:  # DictReader puts fields without a column under None
            raise InvalidInputError(f"{path}, row {i}: more fields than the {len(header)} column names")
        if None in row:
            name = features[row.index(None)]
            raise InvalidInputError(f"{path}, row {i}: column {name!r} must be a number, got {line[name]!r}")
    X = np.array(rows, dtype=np.float64)
    y = np.array([line[columns.label] for line in block]) if columns.label in header else None
    owners, record_ids = (
        [line[name] for line in block] if name in header else None for name in (columns.owner, columns.record)
    )
    return Piece(first, X, y, owners, record_ids)


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _parquet(path: Path, columns: Columns, rows: int) -> Iterator[Piece]:
    parquet = needs_arrow("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"{path}: not a readable parquet file ({error})") from None
    with file:
        yield from _batches(path, columns, list(file.schema_arrow.names), file.iter_batches(rows))


def _ipc(path: Path, columns: Columns, rows: int) -> Iterator[Piece]:
    feather = needs_arrow("pyarrow.feather")
    try:
        table = feather.read_table(path, memory_map=True)
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"{path}: not a readable Arrow file ({error})") from None
    yield from _batches(path, columns, list(table.column_names), table.to_batches(rows))


def _batches(path: Path, columns: Columns, header: list[str], batches: Iterable[Any]) -> Iterator[Piece]:
    features, first = columns.pick(header, path), 0
    for batch in batches:
        X = stacked({name: batch.column(name) for name in features}, str(path))
        y = np.array(batch.column(columns.label).to_pylist()) if columns.label in header else None
        owners, record_ids = (
            _names(batch.column(name)) if name in header else None for name in (columns.owner, columns.record)
        )
        yield Piece(first, X, y, owners, record_ids)
        first += len(X)


def _names(column: Any) -> Any:
    """Whole numbers as an array, which is fast. Anything else as a list."""
    whole = str(column.type).startswith(("int", "uint")) and not column.null_count
    return column.to_numpy() if whole else column.to_pylist()


def class_names(listed: str) -> tuple[Any, ...]:
    """Labels from a text such as a,b,c. If all are whole numbers, they become numbers."""
    names = [name.strip() for name in listed.split(",")]
    return tuple(map(int, names) if all(name.lstrip("-").isdigit() for name in names) else names)


def as_json(value: Any) -> str:
    """A value as JSON that people and programs can read."""
    return json.dumps(value, indent=2, default=str)

"""Reading records and queries from npz, csv and parquet files, piece by piece; writing answers."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError

ROWS = 4096
FORMATS = (".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Which columns of a csv or parquet file are what. Without `features`: all that are not label or owner."""

    label: str = "y"
    owner: str = "owner"
    features: tuple[str, ...] = ()

    def pick(self, header: list[str], path: Path) -> list[str]:
        """The feature columns, in order."""
        chosen = list(self.features) or [name for name in header if name not in {self.label, self.owner}]
        missing = [name for name in chosen if name not in header]
        if missing or not chosen:
            raise InvalidInputError(f"{path} has no column {(missing or ['for features'])[0]!r}; it has {header}")
        return chosen


@dataclass(frozen=True)
class Piece:
    """Some rows: features, and labels and owners where the file has them."""

    first: int
    X: npt.NDArray[np.float64]
    y: npt.NDArray[Any] | None
    owners: list[Any] | None


def pieces(path: Path, columns: Columns = Columns(), rows: int = ROWS) -> Iterator[Piece]:  # noqa: B008
    """The file, in pieces of so many rows."""
    if not path.is_file():
        raise InvalidInputError(f"{path} does not exist")
    readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise InvalidInputError(f"{path} must end in one of {', '.join(FORMATS)}")
    return readers[path.suffix](path, columns, rows)


def labels_in(path: Path, columns: Columns) -> npt.NDArray[Any]:
    """All labels that occur."""
    found = [np.unique(piece.y) for piece in pieces(path, columns) if piece.y is not None]
    if not found:
        raise InvalidInputError(f"{path} has no labels: an array y, or a column named by --label")
    return np.unique(np.concatenate(found))


def digest(path: Path) -> str:
    """The fingerprint of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_answers(path: Path, labels: list[Any]) -> None:
    """Answers as npz (array y), csv or parquet (column y)."""
    if path.suffix == ".npz":
        with path.open("wb") as file:
            np.savez(file, y=np.array(labels))
    elif path.suffix == ".parquet":
        pa, pq = _arrow()
        pq.write_table(pa.table({"y": labels}), path)
    else:
        raise InvalidInputError(f"{path} must end in one of {', '.join(FORMATS)}")


def _npz(path: Path, columns: Columns, rows: int) -> Iterator[Piece]:
    try:
        with np.load(path, allow_pickle=False) as npz:
            X, y, owners = (npz.get(name) for name in ("X", "y", "owners"))
            scale = npz.get("scale")
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInputError(f"{path} cannot be read as npz: {error}") from None
    if X is None or X.ndim != 2:
        raise InvalidInputError(f"{path} must hold a table X, and for records y and owners as well")
    for name, column in (("y", y), ("owners", owners)):
        if column is not None and len(column) != len(X):
            raise InvalidInputError(f"{path}: {name} must have one entry per row of X: {len(X)}, got {len(column)}")
    for first in range(0, len(X), rows):
        part = slice(first, first + rows)
        block = X[part].astype(np.float64)
        if scale is not None:
            block *= scale[part, None]
        names = None if owners is None else owners[part].tolist()
        yield Piece(first, block, None if y is None else y[part], names)


def _csv(path: Path, columns: Columns, rows: int) -> Iterator[Piece]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or [])
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
    try:
        X = np.array([[float(line[name]) for name in features] for line in block])
    except (ValueError, TypeError):
        for i, line in enumerate(block):
            for name in features:
                try:
                    float(line[name])
                except (ValueError, TypeError):
                    raise InvalidInputError(
                        f"{path}, row {first + i}: column {name!r} must be a number, got {line[name]!r}"
                    ) from None
        raise
    y = np.array([line[columns.label] for line in block]) if columns.label in header else None
    owners = [line[columns.owner] for line in block] if columns.owner in header else None
    return Piece(first, X, y, owners)


def _parquet(path: Path, columns: Columns, rows: int) -> Iterator[Piece]:
    _, pq = _arrow()
    try:
        table = pq.ParquetFile(path)
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"{path} cannot be read as parquet: {error}") from None
    header = list(table.schema_arrow.names)
    features, first = columns.pick(header, path), 0
    for batch in table.iter_batches(rows):
        X = np.column_stack([_column(batch.column(name)) for name in features]).astype(np.float64)
        y = np.array(batch.column(columns.label).to_pylist()) if columns.label in header else None
        owners = batch.column(columns.owner).to_pylist() if columns.owner in header else None
        yield Piece(first, X, y, owners)
        first += len(X)


def _column(column: Any) -> npt.NDArray[Any]:
    """A column of numbers, or of lists of numbers."""
    return np.array(column.to_pylist(), dtype=np.float64)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidInputError("parquet files need pyarrow: pip install 'indknn[parquet]'") from None
    return pa, pq


def as_json(value: Any) -> str:
    """JSON for people and programs."""
    return json.dumps(value, indent=2, default=str)

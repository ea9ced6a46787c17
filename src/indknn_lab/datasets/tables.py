"""Anybody's features: npz, parquet or csv in, float32 and labels out.

``npz``      X_train, y_train, X_test, y_test, or X, y. X is float, or int8 with one float per row beside it:
             scale_train, scale_test or scale, features = X * scale[:, None].
``parquet``  one column of labels, every other column a feature; or one column that holds a list per row.
``csv``      the same as parquet, with a header.
"""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.cli.demonstration import Dataset
from indknn.errors import IndKNNError, InvalidInputError
from indknn_lab.datasets.raw import broken

Table: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[Any]]


def load_features(path: Path | str, name: str | None = None) -> Dataset:
    """An npz with a private (train) and a public (test) part."""
    path = Path(path)
    arrays = _npz(path)
    if "X_train" not in arrays:
        raise broken(path, f"needs X_train, y_train, X_test and y_test, got {sorted(arrays)}")
    (X_train, y_train), (X_test, y_test) = (_part(path, arrays, f"_{part}") for part in ("train", "test"))
    if X_train.shape[1] != X_test.shape[1]:
        raise broken(path, f"X_train has {X_train.shape[1]} features and X_test {X_test.shape[1]}")
    return Dataset(name or path.stem, X_train, y_train, X_test, y_test)


def load_table(path: Path | str, label: str = "label") -> Table:
    """X and y of one table: an npz with X and y, or a parquet or csv file with a column `label`."""
    path = Path(path)
    if path.suffix == ".npz":
        return _part(path, _npz(path), "")
    if path.suffix == ".csv":
        return _table(path, _csv_columns(path), label)
    if path.suffix in {".parquet", ".pq"}:
        return _table(path, _parquet_columns(path), label)
    raise broken(path, "the name must end in .npz, .parquet or .csv")


def _npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file")
    try:
        with np.load(path, allow_pickle=False) as npz:
            return {key: npz[key] for key in npz.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise broken(path, f"not a readable npz ({error})") from None


def _part(path: Path, arrays: dict[str, npt.NDArray[Any]], suffix: str) -> Table:
    try:
        X, y = arrays[f"X{suffix}"], arrays[f"y{suffix}"]
    except KeyError as missing:
        raise broken(path, f"has no array {missing}, only {sorted(arrays)}") from None
    scale = arrays.get(f"scale{suffix}")
    if X.dtype.kind not in "fiu":
        raise broken(path, f"X{suffix} must hold numbers, got {X.dtype}")
    if X.dtype == np.int8 and scale is None:
        raise broken(path, f"X{suffix} is int8 and needs scale{suffix}, one float per row")
    features = X.astype(np.float32)
    if scale is not None:
        if scale.shape != (len(X),):
            raise broken(path, f"scale{suffix} must have shape ({len(X)},), got {scale.shape}")
        features *= scale.astype(np.float32)[:, None]
    return _checked(path, features, y)


def _table(path: Path, columns: dict[str, Any], label: str) -> Table:
    if label not in columns:
        raise broken(path, f"has no column {label!r}, only {', '.join(columns)}")
    y = np.asarray(columns.pop(label))
    try:
        parts = [np.array(list(column), dtype=np.float32) for column in columns.values()]
        X = np.hstack([part.reshape(len(y), -1) for part in parts])
    except (TypeError, ValueError) as error:
        raise broken(path, f"every column but {label!r} must hold numbers ({error})") from None
    return _checked(path, X, y)


def _checked(path: Path, X: npt.NDArray[np.float32], y: npt.NDArray[Any]) -> Table:
    if X.ndim != 2 or y.shape != (len(X),):
        raise broken(path, f"features of shape {X.shape} do not go with labels of shape {y.shape}")
    if not np.isfinite(X).all():
        raise broken(path, "holds NaN or infinity")
    return X, y


def _csv_columns(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file")
    with path.open(newline="", encoding="utf-8") as file:
        lines = [row for row in csv.reader(file) if row]
    if len(lines) < 2:
        raise broken(path, "is empty: a header and at least one row are needed")
    header, *rows = lines
    if any(len(row) != len(header) for row in rows):
        raise broken(path, f"every row must have {len(header)} fields, as the header has")
    return {name: _plain(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)}


def _plain(column: tuple[str, ...]) -> npt.NDArray[Any]:
    """Whole numbers where all of them are, text otherwise; features become floats later."""
    try:
        return np.array([int(item) for item in column])
    except ValueError:
        return np.array(column)


def _parquet_columns(path: Path) -> dict[str, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise IndKNNError("reading parquet needs pyarrow: pip install 'indknn[parquet]'") from None
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file")
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise broken(path, f"not a readable parquet file ({error})") from None
    return {name: table.column(name).to_numpy() for name in table.column_names}

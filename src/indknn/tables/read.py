"""The one reader of tables and vectors: frames of every library, and files of every format, some rows at a time.

A table is a dict of columns by name. Text formats give text: an owner 007 in a csv file stays 007 (rule 13). Files in
npz and npy hold vectors, and no columns.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.inputs import as_labels, as_whole
from indknn.errors import InvalidInputError, meant, missing, needs
from indknn.tables.values import as_list, as_numbers

Columns: TypeAlias = dict[str, Any]
"""The columns of a table by name."""
ROWS = 4096
"""How many rows of a file are read at a time."""
VECTORS = (".npz", ".npy")
TABLES = (
    ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet", ".arrow", ".feather", ".ipc", ".xlsx",
)  # fmt: skip
_SEPARATORS = (",", ";", "\t", "|")
_TRIED = 100  # rows that must fit a separator


# Frames


def columns_of(table: Any) -> Columns:
    """The columns of a pandas, polars or Arrow frame, a dict of columns, or a list of rows that are dicts.

    >>> columns_of([{"age": 39, "job": "baker"}, {"age": 41, "job": None}])
    {'age': [39, 41], 'job': ['baker', None]}
    """
    if isinstance(table, Mapping):
        columns = dict(table)
    elif isinstance(table, Sequence) and not isinstance(table, str) and all(isinstance(r, Mapping) for r in table):
        columns = _from_rows(table)
    else:
        names = getattr(table, "column_names", None)  # a list for Arrow; other frames may have a column of this name
        names = list(getattr(table, "columns", ()) if not isinstance(names, list) else names)
        if not names or isinstance(table, np.ndarray):
            raise InvalidInputError(f"a table with column names is needed, got {type(table).__name__}")
        _refuse_twins(names)
        try:
            columns = {name: table[name] for name in names}
        except (TypeError, LookupError):  # a frame that is still to be computed
            raise InvalidInputError(f"a table in memory is needed, got {type(table).__name__}") from None
    for name in columns:
        if not isinstance(name, str):
            raise InvalidInputError(f"column names must be text, got {name!r}")
    lengths = {name: _length(column, name) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"all columns must have the same number of rows, got {lengths}")
    return columns


def _length(column: Any, name: str) -> int:
    try:
        if not isinstance(column, str | bytes):
            return len(column)
    except TypeError:
        pass
    raise InvalidInputError(f"column {name!r} must be a list of values: for one row, give a list of one dict")


def _from_rows(rows: Sequence[Mapping[str, Any]]) -> Columns:
    names = list(rows[0]) if rows else []
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            (odd, *_) = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise InvalidInputError(f"row {i}: column {odd!r} must be in every row or in none; a gap is null")
    return {name: [row[name] for row in rows] for name in names}


def _refuse_twins(names: list[Any]) -> None:
    if len(set(names)) < len(names):
        raise InvalidInputError(f"column {max(names, key=names.count)!r} must not occur twice")


def is_table(X: Any) -> bool:
    """Whether X has column names. Otherwise it is an array of vectors."""
    if isinstance(X, Mapping) or hasattr(X, "columns") or hasattr(X, "column_names"):
        return True
    return isinstance(X, Sequence) and len(X) > 0 and isinstance(X[0], Mapping)


@dataclass(frozen=True)
class Split:
    """The parts of a table: its features, and labels, owners and record ids if it has them.

    `features` are columns if a schema will encode them. Otherwise they are vectors.
    """

    features: Any
    y: npt.NDArray[Any] | None
    owners: Any
    record_ids: Any
    expires: Any = None
    first: int = 0
    """The row of the file that is the first one here."""
    hints: tuple[str, ...] = ("", "")
    """Which columns may have been meant, if there is none for labels or for owners."""
    epsilons: Any = None
    """The promises of owners who were promised less."""

    def __len__(self) -> int:
        columns = self.features.values() if isinstance(self.features, dict) else [self.features]
        return len(next(iter(columns), ()))


def split_by(table: Any, *roles: str | None) -> Split:
    """A table without the columns of these names, and what they hold: label, owner, record id, date and promise."""
    columns = columns_of(table)
    y, owners, ids, dates, less = (None if name is None else columns.get(name) for name in roles)
    columns = {name: column for name, column in columns.items() if name not in roles}
    labels = None if y is None else as_labels(as_list(y))
    until, promised = (None if column is None else as_list(column) for column in (dates, less))
    return Split(columns, labels, _whole_or_list(owners), _whole_or_list(ids), until, epsilons=promised)


def _whole_or_list(column: Any) -> Any:
    """Whole numbers as an array, which takes less memory. Anything else as a list."""
    if column is None:
        return None
    values = as_list(column)
    return np.array(values) if set(map(type, values)) == {int} else values


@dataclass(frozen=True)
class Named:
    """What the columns of a table mean if there is no schema. Without `features`, all others are features."""

    label: str = "y"
    owner: str = "owner"
    features: tuple[str, ...] = ()
    record: str = "record_id"
    expires: str = "expires"
    epsilon: str = ""

    def split(self, table: Any) -> Split:
        """The vectors, and labels, owners and record ids if the table has them."""
        header = list(table)
        found = split_by(table, self.label, self.owner, self.record, self.expires, self.epsilon or None)
        chosen = self.features or tuple(found.features)
        missing = [name for name in chosen if name not in header]
        if missing or not chosen:
            wanted = (missing or ["for features"])[0]
            raise InvalidInputError(f"no column {wanted!r}, only {', '.join(header)}{meant(wanted, header)}")
        roles = ((self.label, found.y, "label"), (self.owner, found.owners, "owner"))
        hints = tuple(meant(name, chosen) if name and held is None else "" for name, held, _ in roles)
        try:
            features = stacked({name: table[name] for name in chosen})
        except InvalidInputError as error:
            for (name, _, option), hint in zip(roles, hints, strict=True):
                if hint:  # a column that was meant for something else is taken for a feature
                    raise InvalidInputError(f"{error}; there is no column {name!r} for --{option}{hint}") from None
            schema = "" if "; write " in str(error) else "; texts, dates and gaps need a schema: indknn schema infer"
            raise InvalidInputError(f"{error}{schema}") from None
        return replace(found, features=features, hints=hints)


def stacked(columns: Columns) -> npt.NDArray[Any]:
    """These columns of numbers, or of lists of numbers, side by side. Copies only when needed."""
    parts = [_numbers_of(column, name) for name, column in columns.items()]
    return parts[0] if len(parts) == 1 and parts[0].ndim == 2 else np.column_stack(parts)


def rows_in(X: Any) -> Any:
    """An array of rows, if X is an Arrow table, batch or array with a list of numbers per row. Otherwise X itself."""
    if not _is_arrow(X):
        return X
    columns = list(X.columns) if hasattr(X, "columns") else [X]
    if not any(_holds_lists(column) for column in columns):
        return X
    return stacked({f"number {i}": column for i, column in enumerate(columns)})


def _numbers_of(column: Any, name: str) -> npt.NDArray[Any]:
    lists = isinstance(column, list) and any(isinstance(value, list) for value in column)
    if not lists and not _is_arrow(column):
        return as_numbers(column, name, ())
    try:
        found = np.array(column, dtype=np.float64) if lists else _from_arrow(column)
        if found.ndim <= 2:
            return found
    except (TypeError, ValueError):
        pass
    raise InvalidInputError(f"column {name!r} must hold numbers, or lists of numbers of one length")


def _is_arrow(X: Any) -> bool:
    return type(X).__module__.partition(".")[0] == "pyarrow"


def _holds_lists(column: Any) -> bool:
    kinds = import_module("pyarrow").types
    kind = getattr(column, "type", None)
    return any(test(kind) for test in (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list))


def _from_arrow(column: Any) -> npt.NDArray[Any]:
    """One number or one list of numbers per row, in its own type. A gap is NaN. Anything else raises ValueError."""
    pa = import_module("pyarrow")
    if isinstance(column, pa.ChunkedArray):
        parts = [_from_arrow(chunk) for chunk in column.chunks if len(chunk)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    if _holds_lists(column):
        entries = column.flatten()
        width = len(entries) // max(len(column), 1)
        even = len(entries) == width * len(column) and not column.null_count
        if even and not pa.types.is_fixed_size_list(column.type):
            even = bool((np.diff(column.offsets.to_numpy()) == width).all())
        if not even:
            raise ValueError
        return _from_arrow(entries).reshape(len(column), width)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.array(column.to_pylist(), dtype=np.float64)


# Files


def pieces(path: Path, split: Callable[[Columns], Split], rows: int = ROWS, part: str = "") -> Iterator[Split]:
    """The file in pieces of at most `rows` rows, each split by a schema or by `Named`.

    A file of vectors is split already. `part` is for npz files with several sets: with `_train` the arrays are X_train,
    y_train and so on.
    """
    first = 0
    vectors = path.suffix in VECTORS
    for piece in _vectors(path, part, rows) if vectors else read_pieces(path, rows):
        with naming(path, first):
            found = piece if isinstance(piece, Split) else split(piece)
        yield replace(found, first=first)
        first += len(found)


def read_pieces(path: Path, rows: int) -> Iterator[Columns]:
    """The columns of a file, at most `rows` rows at a time."""
    ending = _ending(path, TABLES)
    readers: dict[str, Callable[[Path, int], Iterator[Columns]]] = {
        ".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines, ".parquet": _parquet, ".xlsx": _excel,
    }  # fmt: skip
    return readers.get(ending.removesuffix(".gz"), _arrow)(path, rows)


def read_table(path: Path) -> Columns:
    """The columns of a whole file."""
    found = list(read_pieces(path, 1 << 16))
    if not found:
        raise InvalidInputError(f"{path}: a table must have at least one row")
    odd = next((piece for piece in found if piece.keys() != found[0].keys()), None)
    if odd is not None:
        (name, *_) = sorted(odd.keys() ^ found[0].keys())
        raise InvalidInputError(f"{path}: column {name!r} must be in every row or in none; a gap is null")
    return {name: [value for piece in found for value in as_list(piece[name])] for name in found[0]}


def labels_in(found: Iterable[Split], path: Path) -> npt.NDArray[Any]:
    """All labels that occur in these pieces of a file. In csv all is text, so whole numbers there become numbers."""
    labels, hint = [], ""
    for piece in found:
        labels += [] if piece.y is None else [np.unique(piece.y)]
        hint = piece.hints[0]
    if not labels:
        raise InvalidInputError(f"{path} has no labels: an array y, or a column named by --label{hint}")
    return _typed(np.unique(np.concatenate(labels)), path)


def labelled(path: Path, named: Named, part: str = "") -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """All rows of a file as vectors, with their labels."""
    found = list(pieces(path, named.split, part=part))
    if not found or any(piece.y is None for piece in found):
        raise InvalidInputError(f"{path} has no labels: an array y, or a column named by --label")
    y = np.concatenate([piece.y for piece in found if piece.y is not None])
    return np.concatenate([piece.features for piece in found]), _typed(y, path)


def _typed(labels: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
    is_csv = _ending(path, (*VECTORS, *TABLES)).startswith((".csv", ".tsv"))
    return np.array(as_whole(labels.tolist())) if is_csv else labels


def is_table_file(path: Path) -> bool:
    """Whether a file holds a table, judged by its name."""
    return path.name.endswith(TABLES)


def _ending(path: Path, endings: Collection[str]) -> str:
    if not path.is_file():
        raise InvalidInputError(missing(path))
    ending = next((one for one in endings if path.name.endswith(one)), None)
    if ending is None:
        raise InvalidInputError(f"{path} must end in one of {', '.join((*TABLES, *VECTORS))}")
    return ending


@contextmanager
def naming(path: Path, first: int = 0) -> Iterator[list[int]]:
    """Add to an error the name of the file, and count its rows from `first`.

    It gives a list with that row, which may change.
    """
    at = [first]
    try:
        yield at
    except InvalidInputError as error:
        if str(error).startswith(str(path)):
            raise
        text = re.sub(r"^row (\d+)", lambda row: f"row {int(row[1]) + at[0]}", str(error))
        raise type(error)(f"{path}: {text}") from None


@contextmanager
def _readable(path: Path, what: str) -> Iterator[None]:
    """Turn every error of a library that cannot read the file into one line."""
    try:
        yield
    except InvalidInputError:
        raise
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path}: not a readable {what} file (not utf-8; save it as UTF-8)") from None
    except (ValueError, OSError, EOFError, TypeError, KeyError, zlib.error, zipfile.BadZipFile, csv.Error) as error:
        why = "it holds no plain arrays" if "pickle" in str(error) else " ".join(str(error).split())
        raise InvalidInputError(f"{path}: not a readable {what} file ({why})") from None


def _text(path: Path) -> IO[str]:
    """A text file. It is UTF-8, or UTF-16 if it says so in its first two bytes, as Excel writes it."""
    with _bytes(path) as file:
        wide = file.read(2) in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
    return TextIOWrapper(_bytes(path), encoding="utf-16" if wide else "utf-8-sig", newline="")


def _bytes(path: Path) -> Any:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _csv(path: Path, rows: int) -> Iterator[Columns]:
    """Text files with separators. All values are text. pyarrow, if it is there, reads four times faster than `csv`."""
    with _readable(path, "csv"):
        separator, header = _form(path)
        if not header:
            raise InvalidInputError(f"{path}: empty: it needs a line of column names")
        with naming(path):
            _refuse_twins(header)
        first = 0
        for block in _even(_csv_blocks(path, separator, header, rows), rows):
            if header[-1] == "" and len(header) > 1:  # every line ends with a separator
                wrong = next((i for i, value in enumerate(block.pop("")) if value), None)
                if wrong is not None:
                    raise InvalidInputError(f"{path}, row {first + wrong}: the last column needs a name")
            yield block
            first += len(block[header[0]])


def _form(path: Path) -> tuple[str, list[str]]:
    """The separator of a csv file, and the names of its columns.

    It is the first separator that gives the first rows as many fields as the header, and more than one. If no separator
    does, it is the one with the most fields in the header.
    """
    tried: list[tuple[str, list[str]]] = []
    for separator in ("\t",) if path.name.endswith((".tsv", ".tsv.gz")) else _SEPARATORS:
        with _text(path) as file:
            header, *lines = list(islice(_lines(file, separator), 1 + _TRIED)) or [[]]
        if len(header) > 1 and all(len(line) in {0, len(header)} for line in lines):
            return separator, header
        tried.append((separator, header))
    return max(tried, key=lambda pair: len(pair[1]))


def _lines(file: IO[str], separator: str) -> Iterator[list[str]]:
    csv.field_size_limit(1 << 30)  # a text may be longer than the usual limit of 128 KiB
    return csv.reader(file, delimiter=separator)


def _csv_blocks(path: Path, separator: str, header: list[str], rows: int) -> Iterator[Columns]:
    done = 0
    try:
        for block in _by_pyarrow(path, separator, header):
            yield block
            done += len(block[header[0]])
    except ValueError:
        pass  # an error of pyarrow: what follows is read by `csv`, which names the row
    else:
        if done:
            return
    with _text(path) as file:
        filled = (line for line in _lines(file, separator) if line)
        lines = islice(filled, 1 + done, None)
        while some := list(islice(lines, rows)):
            for i, line in enumerate(some, start=done):
                if len(line) != len(header):
                    raise InvalidInputError(f"{path}, row {i}: must have {len(header)} fields, got {len(line)}")
            yield {name: list(column) for name, column in zip(header, zip(*some, strict=True), strict=True)}
            done += len(some)


def _by_pyarrow(path: Path, separator: str, header: list[str]) -> Iterator[Columns]:
    """The columns as pyarrow reads them. Nothing without pyarrow. Raises ValueError if a row is not as it should be."""
    try:
        pa, arrow_csv = import_module("pyarrow"), import_module("pyarrow.csv")
    except ModuleNotFoundError:
        return
    with arrow_csv.open_csv(
        path,
        read_options=arrow_csv.ReadOptions(column_names=header, skip_rows_after_names=1),
        parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
    ) as batches:
        for batch in batches:
            yield {name: column.to_pylist() for name, column in zip(header, batch.columns, strict=True)}


def _even(blocks: Iterable[Columns], rows: int) -> Iterator[Columns]:
    """The same columns in pieces of exactly `rows` rows, and the rest. So a request can be repeated piece by piece."""
    held: Columns = {}
    for block in blocks:
        held = {name: held.get(name, []) + values for name, values in block.items()}
        length = len(next(iter(held.values())))
        end = length - length % rows
        for low in range(0, end, rows):
            yield {name: values[low : low + rows] for name, values in held.items()}
        held = {name: values[end:] for name, values in held.items()} if end < length else {}
    if held:
        yield held


def _json_lines(path: Path, rows: int) -> Iterator[Columns]:
    with _readable(path, "JSON lines"), _text(path) as file:
        lines = ((i, line) for i, line in enumerate(file) if line.strip())
        while piece := [_json_row(path, i, line) for i, line in islice(lines, rows)]:
            yield columns_of(piece)


def _json_row(path: Path, i: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidInputError(f"{path}, row {i}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise InvalidInputError(f"{path}, row {i}: must be a JSON object with column names")
    return row


def _parquet(path: Path, rows: int) -> Iterator[Columns]:
    parquet = needs("pyarrow.parquet", "tables", "a parquet file")
    with _readable(path, "parquet"), parquet.ParquetFile(path) as file:
        yield from (columns_of(batch) for batch in file.iter_batches(rows))


def _arrow(path: Path, rows: int) -> Iterator[Columns]:
    feather = needs("pyarrow.feather", "tables", "an Arrow file")
    with _readable(path, "Arrow"):
        table = feather.read_table(path, memory_map=True)
        for low in range(0, len(table), rows):
            yield columns_of(table.slice(low, rows))


def _excel(path: Path, rows: int) -> Iterator[Columns]:
    """The first sheet of a workbook. Its first row names the columns. Empty rows are left out."""
    openpyxl = needs("openpyxl", "excel", "an Excel file")
    with _readable(path, "Excel"):
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        lines = (list(line) for line in book.worksheets[0].iter_rows(values_only=True))
        filled = (line for line in lines if any(value is not None for value in line))
        header = [str(name) for name in next(filled, []) if name is not None]
        if not header:
            raise InvalidInputError(f"{path}: empty: it needs a row of column names")
        with naming(path):
            _refuse_twins(header)
        first = 0
        while some := list(islice(filled, rows)):
            for i, line in enumerate(some, start=first):
                if any(value is not None for value in line[len(header) :]):
                    raise InvalidInputError(f"{path}, row {i}: must have {len(header)} fields, got {len(line)}")
            yield {name: [line[j] if j < len(line) else None for line in some] for j, name in enumerate(header)}
            first += len(some)
        book.close()


def _vectors(path: Path, part: str, rows: int) -> Iterator[Split]:
    """The arrays of an npz file: X, y, owners, record_ids, expires, epsilons, the scale of an int8 X. An npy is X."""
    _ending(path, VECTORS)
    names = [f"{name}{part}" for name in ("X", "y", "owners", "scale", "record_ids", "expires", "epsilons")]
    with _readable(path, path.suffix[1:]), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray) != (path.suffix == ".npy"):
            raise ValueError("an npy file holds one array, and an npz file has names for them")
        arrays: Mapping[str, Any] = {names[0]: loaded} if path.suffix == ".npy" else loaded
        X, y, owners, scale, record_ids, expires, epsilons = (arrays.get(name) for name in names)
        held = ", ".join(arrays)
    if X is not None and X.ndim != 2:
        raise InvalidInputError(f"{path}: {names[0]} must have one row of features per record, got shape {X.shape}")
    if X is None:
        raise InvalidInputError(f"{path}: needs a table {names[0]}, and for records {names[1]}; it has {held}")
    if X.dtype.kind not in "biuf":
        raise InvalidInputError(f"{path}: {names[0]} must hold numbers, got {X.dtype}")
    if X.dtype == np.int8 and scale is None and part:  # a feature file: its values were scaled to int8
        raise InvalidInputError(f"{path}: {names[0]} is int8 and needs {names[3]}, one number per row")
    for name, column in zip(names[1:], (y, owners, scale, record_ids, expires, epsilons), strict=True):
        if column is not None and column.shape != (len(X),):
            got = len(column) if column.ndim == 1 else column.shape
            raise InvalidInputError(f"{path}: {name} must have one entry per row of {names[0]}: {len(X)}, got {got}")
    for low in range(0, len(X), rows):
        some = slice(low, low + rows)
        block = X[some] if scale is None else X[some].astype(np.float64) * scale[some, None]
        roles = (y, owners, record_ids, expires, epsilons)
        labels, who, ids, dates, less = (None if column is None else column[some] for column in roles)
        yield Split(block, labels, who, ids, dates, epsilons=less)

"""Reads tables from csv, JSON lines, parquet and Arrow files, some rows at a time."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from indknn.errors import InvalidInputError
from indknn.tables.arrow import needs_arrow
from indknn.tables.values import Columns, as_list, columns_of

ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet", ".arrow", ".feather")


def ending_of(path: Path) -> str:
    """The ending of a file name. For `.gz` it includes the ending before it, as in `.csv.gz`."""
    return "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix


def read_pieces(path: Path, rows: int) -> Iterator[Columns]:
    """The columns of a file, at most `rows` rows at a time."""
    if not path.is_file():
        raise InvalidInputError(f"{path} does not exist")
    readers = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}
    ending = ending_of(path)
    if ending not in ENDINGS:
        raise InvalidInputError(f"{path} must end in one of {', '.join(ENDINGS)}")
    return readers[ending.removesuffix(".gz")](path, rows)


def read_table(path: Path) -> Columns:
    """The columns of a whole file."""
    pieces = list(read_pieces(path, 1 << 16))
    if not pieces:
        raise InvalidInputError(f"{path}: a table must have at least one row")
    odd = next((piece for piece in pieces if piece.keys() != pieces[0].keys()), None)
    if odd is not None:
        (name, *_) = sorted(odd.keys() ^ pieces[0].keys())
        raise InvalidInputError(f"{path}: column {name!r} must be in every row or in none; a gap is null")
    return {name: [value for piece in pieces for value in as_list(piece[name])] for name in pieces[0]}


def _text_file(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv(path: Path, rows: int) -> Iterator[Columns]:
    with _text_file(path) as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if not header:
            raise InvalidInputError(f"{path}: empty: it needs a line of column names")
        if len(set(header)) < len(header):
            raise InvalidInputError(f"{path}: column {max(header, key=header.count)!r} must not occur twice")
        first = 0
        filled = (line for line in reader if line)
        while lines := list(islice(filled, rows)):
            for i, line in enumerate(lines, start=first):
                if len(line) != len(header):
                    raise InvalidInputError(f"{path}, row {i}: must have {len(header)} fields, got {len(line)}")
            yield {name: list(column) for name, column in zip(header, zip(*lines, strict=True), strict=True)}
            first += len(lines)


def _json_lines(path: Path, rows: int) -> Iterator[Columns]:
    with _text_file(path) as file:
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
    parquet = needs_arrow("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"{path}: not a readable parquet file ({error})") from None
    with file:
        yield from (columns_of(batch) for batch in file.iter_batches(rows))


def _arrow(path: Path, rows: int) -> Iterator[Columns]:
    feather = needs_arrow("pyarrow.feather")
    try:
        table = feather.read_table(path)
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"{path}: not a readable Arrow file ({error})") from None
    for low in range(0, len(table), rows):
        yield columns_of(table.slice(low, rows))

"""AG News and DBpedia-14 (Zhang, Zhao & LeCun 2015) from their original train.csv and test.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indknn_lab.datasets.raw import RawDataset, broken, existing

AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
DBPEDIA_CLASSES = (
    "Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation",
    "Building", "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork",
)  # fmt: skip


def load_ag_news(folder: Path | str) -> RawDataset:
    """120,000 + 7,600 news items: title and description as one text, classes 0 to 3."""
    return _load("agnews", folder, AG_NEWS_CLASSES)


def load_dbpedia14(folder: Path | str) -> RawDataset:
    """560,000 + 70,000 encyclopaedia entries: title and abstract as one text, classes 0 to 13."""
    return _load("dbpedia", folder, DBPEDIA_CLASSES)


def _load(name: str, folder: Path | str, classes: tuple[str, ...]) -> RawDataset:
    train, y_train = _read(existing(folder, "train.csv"), len(classes))
    test, y_test = _read(existing(folder, "test.csv"), len(classes))
    return RawDataset(name, train, y_train, test, y_test, classes)


def _read(path: Path, n_classes: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    texts, labels = [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for label, text in _rows(path, file, n_classes):
                labels.append(label)
                texts.append(text)
    except (UnicodeDecodeError, csv.Error) as error:
        raise broken(path, f"not a table of texts ({error})") from None
    if not texts:
        raise broken(path, "no rows")
    return texts, np.array(labels, dtype=np.int64)


def _rows(path: Path, lines: Iterator[str], n_classes: int) -> Iterator[tuple[int, str]]:
    for number, row in enumerate(csv.reader(lines), start=1):
        if not row or (number == 1 and not row[0].strip().isdigit()):
            continue  # an empty line; some copies carry a header, the original does not
        if len(row) < 2 or not row[0].strip().isdigit() or not 1 <= int(row[0]) <= n_classes:
            raise broken(path, f"row {number} must be a class of 1 to {n_classes} and a text, got {row[:1]}")
        # The original writes a line break within a text as a backslash and an n, or a lone backslash.
        text = " ".join(row[1:]).replace("\\n", " ").replace("\\", " ")
        yield int(row[0]) - 1, " ".join(text.split())

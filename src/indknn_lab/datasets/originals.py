"""Reads the paper's data sets in their original form: images or texts, before any feature extraction.

CIFAR-10 (Krizhevsky 2009) in the Python or the binary version, Fashion-MNIST (Xiao, Rasul & Vollgraf 2017) as idx
files, AG News and DBpedia-14 (Zhang, Zhao & LeCun 2015) as train.csv and test.csv.
"""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn_lab.datasets.features import FASHION_CLASSES

Labels: TypeAlias = npt.NDArray[np.int64]
Images: TypeAlias = npt.NDArray[np.uint8]

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
DBPEDIA_CLASSES = (
    "Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation",
    "Building", "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork",
)  # fmt: skip
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class RawDataset:
    """Private items (train) and public items (test): images of shape (n, height, width[, 3]), or texts."""

    name: str
    train: Images | Sequence[str]
    y_train: Labels
    test: Images | Sequence[str]
    y_test: Labels
    class_names: tuple[str, ...]


def load_cifar10(folder: Path | str) -> RawDataset:
    """The 50,000 + 10,000 images in `folder`, from data_batch_1..5 and test_batch, with or without .bin."""
    parts = [_cifar_batch(folder, f"data_batch_{i}") for i in range(1, 6)]
    train, y_train = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return RawDataset("cifar10", train, y_train, *_cifar_batch(folder, "test_batch"), CIFAR10_CLASSES)


def load_fashion_mnist(folder: Path | str) -> RawDataset:
    """The 60,000 + 10,000 images in `folder`, from train-images-idx3-ubyte.gz and its three companions."""
    return RawDataset("fmnist", *_idx_pair(folder, "train"), *_idx_pair(folder, "t10k"), FASHION_CLASSES)


def load_ag_news(folder: Path | str) -> RawDataset:
    """120,000 + 7,600 news items: title and description as one text, classes 0 to 3."""
    return RawDataset("agnews", *_texts(folder, AG_NEWS_CLASSES), AG_NEWS_CLASSES)


def load_dbpedia14(folder: Path | str) -> RawDataset:
    """560,000 + 70,000 encyclopaedia entries: title and abstract as one text, classes 0 to 13."""
    return RawDataset("dbpedia", *_texts(folder, DBPEDIA_CLASSES), DBPEDIA_CLASSES)


def _existing(folder: Path | str, *names: str) -> Path:
    """The first of these names that is a file in the folder. If there is none, an error lists the names."""
    base = Path(folder)
    if not base.is_dir():
        raise InvalidInputError(f"{base} is not a folder")
    for name in names:
        if (base / name).is_file():
            return base / name
    raise InvalidInputError(f"{base} has no {' nor '.join(names)}")


def _broken(path: Path, what: Any) -> InvalidInputError:
    """The error for a file that is damaged or has another format."""
    return InvalidInputError(f"{path}: {what}")


def _cifar_batch(folder: Path | str, name: str) -> tuple[Images, Labels]:
    path = _existing(folder, name, f"{name}.bin")
    pixels, labels = _from_binary(path) if path.suffix == ".bin" else _from_pickle(path)
    if len(labels) != len(pixels) or labels.min(initial=0) < 0 or labels.max(initial=0) > 9:
        raise _broken(path, f"not a CIFAR-10 batch: {len(pixels)} images need as many labels of 0 to 9")
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def _from_binary(path: Path) -> tuple[Images, Labels]:
    data = np.fromfile(path, dtype=np.uint8)
    if not len(data) or len(data) % (1 + _PIXELS):
        raise _broken(path, f"not a CIFAR-10 batch: {len(data)} bytes are no multiple of {1 + _PIXELS}")
    rows = data.reshape(-1, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)


def _from_pickle(path: Path) -> tuple[Images, Labels]:
    try:
        batch = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = batch[b"data"], np.array(batch[b"labels"], dtype=np.int64)
        shape = pixels.dtype, pixels.shape[1:]
    except InvalidInputError as error:
        raise _broken(path, error) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise _broken(path, f"not a CIFAR-10 batch in Python form ({type(error).__name__})") from None
    if shape != (np.uint8, (_PIXELS,)):
        raise _broken(path, f"not a CIFAR-10 batch: expected rows of {_PIXELS} bytes, got {shape[1]} of {shape[0]}")
    return pixels, labels


class _ArrayUnpickler(pickle.Unpickler):
    """Reads only arrays of numbers. Ordinary unpickling of an untrusted file could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            return np.zeros(0).__reduce__()[0]
        if module == "numpy" and name in {"ndarray", "dtype"}:
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # Python 3 uses it to write bytes into old pickles
            return lambda text, _: text.encode("latin1")
        raise InvalidInputError(f"the pickle asks for {module}.{name}, which a CIFAR-10 batch does not need")


def _idx_pair(folder: Path | str, part: str) -> tuple[Images, Labels]:
    names = [f"{part}-{name}-ubyte" for name in ("images-idx3", "labels-idx1")]
    images, labels = (_existing(folder, f"{name}.gz", name) for name in names)
    pixels, y = _read_idx(images), _read_idx(labels).astype(np.int64)
    if pixels.ndim != 3 or y.ndim != 1 or len(pixels) != len(y):
        raise _broken(images, f"images of shape {pixels.shape} do not go with labels of shape {y.shape}")
    return pixels, y


def _read_idx(path: Path) -> Images:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(path, f"cannot be unpacked ({error})") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise _broken(path, "not an idx file of bytes")
    ndim = data[3]
    if len(data) < 4 + 4 * ndim:
        raise _broken(path, "cut off within its header")
    shape = struct.unpack(f">{ndim}I", data[4 : 4 + 4 * ndim])
    content = data[4 + 4 * ndim :]
    if len(content) != prod(shape):
        raise _broken(path, f"its header promises {prod(shape)} bytes, got {len(content)}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _texts(folder: Path | str, classes: tuple[str, ...]) -> tuple[list[str], Labels, list[str], Labels]:
    train, test = (_read_texts(_existing(folder, name), len(classes)) for name in ("train.csv", "test.csv"))
    return *train, *test


def _read_texts(path: Path, n_classes: int) -> tuple[list[str], Labels]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(_rows(path, file, n_classes))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _broken(path, f"not a table of texts ({error})") from None
    if not rows:
        raise _broken(path, "no rows")
    return [text for _, text in rows], np.array([label for label, _ in rows], dtype=np.int64)


def _rows(path: Path, lines: Iterator[str], n_classes: int) -> Iterator[tuple[int, str]]:
    for number, row in enumerate(csv.reader(lines), start=1):
        if not row or (number == 1 and not row[0].strip().isdigit()):
            continue  # an empty line, or the header that some copies have and the original does not
        if len(row) < 2 or not row[0].strip().isdigit() or not 1 <= int(row[0]) <= n_classes:
            raise _broken(path, f"row {number} must be a class of 1 to {n_classes} and a text, got {row[:1]}")
        # In the original, a line break within a text is a backslash and an n, or a single backslash.
        text = " ".join(row[1:]).replace("\\n", " ").replace("\\", " ")
        yield int(row[0]) - 1, " ".join(text.split())

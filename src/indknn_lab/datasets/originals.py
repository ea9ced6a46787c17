"""Turns original files of the paper's data sets into what `indknn extract` reads, and joins what it has written.

python -m indknn_lab.datasets.originals cifar10 cifar-10-batches-bin originals
indknn extract originals/cifar10-train.npz -o train.npz --model resnet50-logits
indknn extract originals/cifar10-test.npz -o test.npz --model resnet50-logits --public
python -m indknn_lab.datasets.originals join train.npz test.npz features/cifar10-r50-logits.npz
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError

Bytes = npt.NDArray[np.uint8]
PARTS = ("train", "test")


def cifar10(folder: Path, part: str) -> tuple[Bytes, Bytes]:
    """Images and labels of the binary version: files of records of one label and 32 x 32 pixels in three planes."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if part == "train" else ["test_batch.bin"]
    rows = np.concatenate([np.frombuffer(_content(folder / name), dtype=np.uint8) for name in names]).reshape(-1, 3073)
    return np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), rows[:, 0]


def fmnist(folder: Path, part: str) -> tuple[Bytes, Bytes]:
    """Images and labels of the four files with names in -ubyte.gz."""
    start = "train" if part == "train" else "t10k"
    images, labels = (
        np.frombuffer(gzip.decompress(_content(folder / f"{start}-{name}-ubyte.gz")), dtype=np.uint8)
        for name in ("images-idx3", "labels-idx1")
    )
    return images[16:].reshape(-1, 28, 28), labels[8:]


def texts(folder: Path, part: str) -> tuple[list[str], list[int]]:
    """Texts and labels of AG News and DBpedia: train.csv and test.csv with a class from 1 on, a title and a text."""
    with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return [" ".join(row[1:]) for row in rows], [int(row[0]) - 1 for row in rows]


READERS: dict[str, Callable[[Path, str], tuple[Any, Any]]] = {
    "cifar10": cifar10,
    "fmnist": fmnist,
    "agnews": texts,
    "dbpedia": texts,
}


def convert(name: str, folder: Path, into: Path) -> list[Path]:
    """Write both parts of a data set: images as npz, texts as csv with the columns text and y."""
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for part in PARTS:
        items, labels = READERS[name](folder, part)
        written.append(into / f"{name}-{part}.{'csv' if isinstance(items, list) else 'npz'}")
        if isinstance(items, list):
            with written[-1].open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("text", "y"), *zip(items, labels, strict=True)])
        else:
            np.savez(written[-1], images=items, y=labels)
    return written


def join(train: Path, test: Path, out: Path) -> Path:
    """One feature file of two that `indknn extract` has written. The first part is private, the second one public."""
    arrays: dict[str, Any] = {}
    for part, path in zip(PARTS, (train, test), strict=True):
        with np.load(path, allow_pickle=False) as npz:
            arrays |= {f"{name}_{part}": npz[name] for name in ("X", "y")}
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **arrays)
    return out


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise InvalidInputError(f"{path} does not exist: is {path.parent} the folder of the original files?")
    return path.read_bytes()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["join", *paths] if len(paths) == 3:
            print(join(*map(Path, paths)))
        case [name, folder, into] if name in READERS:
            print(*convert(name, Path(folder), Path(into)), sep="\n")
        case _:
            sys.exit(f"usage: originals {'|'.join(READERS)} FOLDER INTO, or: originals join TRAIN TEST OUT")

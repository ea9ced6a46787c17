"""Fashion-MNIST (Xiao, Rasul & Vollgraf 2017) from its original idx files, gzipped or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indknn.cli.demonstration import FASHION_CLASSES
from indknn_lab.datasets.raw import RawDataset, broken, existing

_UINT8 = 0x08


def load_fashion_mnist(folder: Path | str) -> RawDataset:
    """The 60,000 + 10,000 images in `folder`, from train-images-idx3-ubyte.gz and its three companions."""
    train, y_train = _images(folder, "train")
    test, y_test = _images(folder, "t10k")
    return RawDataset("fmnist", train, y_train, test, y_test, FASHION_CLASSES)


def read_idx(path: Path | str) -> npt.NDArray[np.uint8]:
    """The array of bytes in an idx file."""
    path = Path(path)
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise broken(path, f"cannot be unpacked ({error})") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UINT8:
        raise broken(path, "not an idx file of bytes")
    ndim = data[3]
    if len(data) < 4 + 4 * ndim:
        raise broken(path, "cut off within its header")
    shape = struct.unpack(f">{ndim}I", data[4 : 4 + 4 * ndim])
    content = data[4 + 4 * ndim :]
    if len(content) != prod(shape):
        raise broken(path, f"its header promises {prod(shape)} bytes, got {len(content)}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _images(folder: Path | str, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    images, labels = (
        existing(folder, f"{part}-{name}-ubyte.gz", f"{part}-{name}-ubyte") for name in ("images-idx3", "labels-idx1")
    )
    pixels, y = read_idx(images), read_idx(labels).astype(np.int64)
    if pixels.ndim != 3 or y.ndim != 1 or len(pixels) != len(y):
        raise broken(images, f"images of shape {pixels.shape} do not go with labels of shape {y.shape}")
    return pixels, y

"""CIFAR-10 (Krizhevsky 2009) from its original files, in the Python or the binary version.

The Python version is made of pickles, and unpickling a stranger's file runs whatever it says. So nothing of
it is run here: the few names that these files mention are replaced by stand-ins that know one thing, an array
of bytes, and any other name is refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn_lab.datasets.raw import RawDataset, broken, existing

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_PIXELS = 3 * 32 * 32
_NUMPY = {"numpy.core.multiarray", "numpy._core.multiarray"}

Part = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def load_cifar10(folder: Path | str) -> RawDataset:
    """The 50,000 + 10,000 images in `folder`, from data_batch_1..5 and test_batch, with or without .bin."""
    parts = [_load(existing(folder, f"data_batch_{i}", f"data_batch_{i}.bin")) for i in range(1, 6)]
    test, y_test = _load(existing(folder, "test_batch", "test_batch.bin"))
    train, y_train = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return RawDataset("cifar10", train, y_train, test, y_test, CIFAR10_CLASSES)


def _load(path: Path) -> Part:
    pixels, labels = _from_binary(path) if path.suffix == ".bin" else _from_pickle(path)
    if len(labels) != len(pixels) or labels.min(initial=0) < 0 or labels.max(initial=0) > 9:
        raise broken(path, f"not a CIFAR-10 batch: {len(pixels)} images need as many labels of 0 to 9")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels


def _from_binary(path: Path) -> Part:
    data = np.fromfile(path, dtype=np.uint8)
    if not len(data) or len(data) % (1 + _PIXELS):
        raise broken(path, f"not a CIFAR-10 batch: {len(data)} bytes are no multiple of {1 + _PIXELS}")
    rows = data.reshape(-1, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)


def _from_pickle(path: Path) -> Part:
    try:
        batch = _SafeUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = batch[b"data"].array(), np.array(batch[b"labels"], dtype=np.int64)
    except InvalidInputError as error:
        raise broken(path, error) from None
    except Exception as error:
        # A damaged pickle can fail in any way at all; none of them matters but that it did.
        raise broken(path, f"not a CIFAR-10 batch in Python form ({type(error).__name__})") from None
    if pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise broken(path, f"not a CIFAR-10 batch: expected rows of {_PIXELS} bytes, got {pixels.shape}")
    return pixels, labels


class _ByteArray:
    """Stands in for numpy.ndarray: takes the state of a pickled array of bytes, and nothing else."""

    def __init__(self, *ignored: Any):
        self._shape: tuple[int, ...] = (0,)
        self._bytes = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_column, content = state
        if not isinstance(dtype, _ByteType) or by_column or not isinstance(content, bytes):
            raise InvalidInputError("not a plain array of bytes")
        self._shape, self._bytes = tuple(int(n) for n in shape), content

    def array(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._bytes, dtype=np.uint8).reshape(self._shape)


class _ByteType:
    """Stands in for numpy.dtype: uint8 only."""

    def __init__(self, name: Any, *ignored: Any):
        if name not in {b"u1", "u1"}:
            raise InvalidInputError(f"an array of bytes (u1) was expected, got {name!r}")

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and the like, which bytes do not have


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, by which Python 3 writes bytes into old pickles."""
    return text.encode("latin1")


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _NUMPY and name == "_reconstruct":
            return _ByteArray
        if (module, name) == ("numpy", "ndarray"):
            return _ByteArray
        if (module, name) == ("numpy", "dtype"):
            return _ByteType
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise InvalidInputError(f"the pickle asks for {module}.{name}, which a CIFAR-10 batch does not need")

"""A cache for features, which are slow to compute. It consists of shards on disk.

A shard holds the features of some thousand consecutive items, and digests of the items and of the features. It is
written completely or not at all. A run that was stopped continues after the last complete shard. A shard that is
damaged, or that belongs to other items, is noticed when it is read, and made again.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from indknn.errors import InvalidInputError
from indknn.features import Extractor, Features, Items

Progress = Callable[[int, int], None]


def extract(
    items: Items,
    extractor: Extractor,
    cache_dir: Path | str,
    *,
    public: bool = False,
    progress: Progress | None = None,
    batch_size: int = 64,
    shard_size: int = 2048,
) -> Features:
    """The features of all items. Features that are in the cache are not computed again.

    Private items go to the extractor one at a time. In a batch, items are padded and summed together, and the last bits
    of a row could depend on the others (rule 1). Use public=True for items that are nobody's, such as public queries.
    They go in batches of `batch_size`, which is faster.

    `progress(done, total)` is called after every batch, and for every shard in the cache. Use a separate `cache_dir`
    for each data set and each part of it (train, test). Several extractors may share one.
    """
    if batch_size < 1 or shard_size < 1:
        raise InvalidInputError(f"batch_size and shard_size must be at least 1, got {batch_size}, {shard_size}")
    folder = Path(cache_dir) / re.sub(r"[^A-Za-z0-9._-]+", "-", extractor.name)
    folder.mkdir(parents=True, exist_ok=True)
    total = len(items)
    features = np.empty((total, extractor.n_features), dtype=np.float32)
    for start in range(0, total, shard_size):
        part = items[start : start + shard_size]
        path = folder / f"shard-{start:09d}-{len(part)}.npz"
        key = _digest(part, extractor, public)
        known = _read(path, key)
        if known is None:
            known = _compute(part, extractor, batch_size if public else 1, _from(progress, start, total))
            _write(path, known, key)
        elif progress is not None:
            progress(start + len(part), total)
        features[start : start + len(part)] = known
    return features


def _compute(part: Items, extractor: Extractor, batch_size: int, progress: Callable[[int], None]) -> Features:
    rows = []
    for low in range(0, len(part), batch_size):
        batch = part[low : low + batch_size]
        made = np.asarray(extractor(batch), dtype=np.float32)
        if made.shape != (len(batch), extractor.n_features):
            raise InvalidInputError(
                f"{extractor.name} must return shape ({len(batch)}, {extractor.n_features}), got {made.shape}"
            )
        if not np.isfinite(made).all():
            raise InvalidInputError(f"{extractor.name} returned NaN or infinity")
        rows.append(made)
        progress(low + len(batch))
    return np.concatenate(rows)


def _from(progress: Progress | None, start: int, total: int) -> Callable[[int], None]:
    return lambda done: None if progress is None else progress(start + done, total)


def _read(path: Path, key: str) -> Features | None:
    """The features of a shard. None if the shard must be computed."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as npz:
            features, items, checksum = npz["features"], str(npz["items"]), str(npz["checksum"])
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        warnings.warn(f"{path} is damaged ({error}) and is made again", stacklevel=3)
        return None
    if items != key:
        warnings.warn(f"{path} holds the features of other items, or of whole batches, and is made again", stacklevel=3)
        return None
    if checksum != _checksum(features):
        warnings.warn(f"{path} is damaged (its checksum differs) and is made again", stacklevel=3)
        return None
    return np.asarray(features, dtype=np.float32)


def _write(path: Path, features: Features, key: str) -> None:
    """Write to a temporary name first, so that `path` is always a complete shard or missing."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, features=features, items=np.array(key), checksum=np.array(_checksum(features)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _checksum(features: Features) -> str:
    return hashlib.sha256(np.ascontiguousarray(features).tobytes()).hexdigest()


def _digest(part: Items, extractor: Extractor, public: bool) -> str:
    """A digest of the items, the extractor, and whether items went in batches."""
    how = "" if public else "one by one\0"
    digest = hashlib.sha256(f"{extractor.name}\0{extractor.n_features}\0{how}".encode())
    if isinstance(part, np.ndarray) and part.dtype != object:
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()
    for item in part:
        content = item if isinstance(item, bytes) else str(item).encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()

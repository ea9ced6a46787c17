"""Images in files. They are read when they are needed, and the cache identifies them by their contents."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import overload

import numpy as np

from indknn.errors import InvalidInputError
from indknn.features.base import Extractor, Features, Items, needs


class ImageFiles(Sequence[bytes]):
    """A sequence of the contents of files. Only the files of one slice are in memory at a time."""

    def __init__(self, paths: Sequence[Path]):
        self._paths = list(paths)

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [path.read_bytes() for path in self._paths[index]]
        return self._paths[index].read_bytes()


class FromFiles:
    """Lets an extractor for images take the contents of image files. Each file goes through it separately."""

    def __init__(self, extractor: Extractor):
        self.extractor = extractor
        self.name, self.n_features = extractor.name, extractor.n_features

    def __call__(self, batch: Items) -> Features:
        """The features of these images, which may differ in size."""
        image = needs("PIL.Image", "onnx")
        rows = []
        for content in batch:
            try:
                pixels = np.asarray(image.open(BytesIO(content)).convert("RGB"))
            except OSError as error:
                raise InvalidInputError(f"an image cannot be read: {error}") from None
            rows.append(self.extractor(pixels[None]))
        return np.concatenate(rows)

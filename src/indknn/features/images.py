"""Prepares images for a network: three channels, and the size and range of values that the network expects."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.features.base import Items, needs


def as_rgb(batch: Items) -> npt.NDArray[np.uint8]:
    """uint8 images as an array of shape (n, height, width, 3). Grey images get three equal channels.

    >>> as_rgb(np.zeros((2, 28, 28), dtype=np.uint8)).shape
    (2, 28, 28, 3)
    """
    images = np.asarray(batch)
    if images.dtype != np.uint8:
        raise InvalidInputError(f"images must be uint8, got {images.dtype}")
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=3)
    if images.ndim != 4 or images.shape[3] != 3:
        raise InvalidInputError(f"images must have shape (n, height, width[, 3]), got {images.shape}")
    return images


def torch_batch(batch: Items, size: int, mean: tuple[float, ...], std: tuple[float, ...], device: str) -> Any:
    """A normalised float tensor of shape (n, 3, size, size). Images are resized and never cropped."""
    torch = needs("torch")
    pixels = torch.from_numpy(np.ascontiguousarray(as_rgb(batch))).to(device)
    pixels = pixels.permute(0, 3, 1, 2).float() / 255.0
    pixels = torch.nn.functional.interpolate(pixels, (size, size), mode="bicubic", antialias=True)
    shape = (1, 3, 1, 1)
    return (pixels.clamp(0.0, 1.0) - torch.tensor(mean, device=device).view(shape)) / torch.tensor(
        std, device=device
    ).view(shape)


def best_device(device: str | None) -> str:
    """The given device. By default a GPU if there is one, else the CPU."""
    if device is not None:
        return device
    return "cuda" if needs("torch").cuda.is_available() else "cpu"

"""Features of many items: a cache for what was extracted, images in files, and the image extractors of the paper.

They are ViT (ImageNet-21k) and ResNet-50 (ImageNet). Libraries download the models on first use. No large library is
imported before a model is used.

Features are slow to compute, so they are kept in shards on disk. A shard holds the features of some thousand
consecutive items, and digests of the items and of the features. It is written completely or not at all. A run that was
stopped continues after the last complete shard. A shard that is damaged, or that belongs to other items, is noticed
when it is read, and made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from indknn import features
from indknn.errors import InvalidInputError
from indknn.features import Extractor, Features, Items, OnnxImage, as_rgb, model_file, needs

Progress = Callable[[int, int], None]


def extract(
    items: Items,
    extractor: Extractor,
    cache_dir: Path | str,
    *,
    public: bool = False,
    progress: Progress = lambda done, total: None,
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
            known = _compute(part, extractor, batch_size if public else 1, progress, start, total)
            _write(path, known, key)
        else:
            progress(start + len(part), total)
        features[start : start + len(part)] = known
    return features


def _compute(
    part: Items, extractor: Extractor, batch_size: int, progress: Progress, start: int, total: int
) -> Features:
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
        progress(start + low + len(batch), total)
    return np.concatenate(rows)


def _read(path: Path, key: str) -> Features | None:
    """The features of a shard. None if the shard must be computed."""
    if not path.exists():
        return None
    wrong = ""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as npz:
            features, items, checksum = npz["features"], str(npz["items"]), str(npz["checksum"])
        if items != key:
            wrong = "holds the features of other items, or of whole batches,"
        elif checksum != _checksum(features):
            wrong = "is damaged (its checksum differs)"
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        wrong = f"is damaged ({error})"
    if wrong:
        warnings.warn(f"{path} {wrong} and is made again", stacklevel=3)
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


_VIT_WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280}


class _TorchImages:
    """A network in PyTorch for images, which is loaded on first use, on a GPU if there is one."""

    name: str
    n_features: int
    size = 224
    scaling: tuple[tuple[float, ...], tuple[float, ...]]
    device: str | None

    def _loaded(self) -> Any:
        raise NotImplementedError

    @cached_property
    def _network(self) -> tuple[Any, str]:
        device = self.device or ("cuda" if needs("torch").cuda.is_available() else "cpu")
        return self._loaded().eval().to(device), device

    def _features(self, out: Any) -> Any:
        return out

    def __call__(self, batch: Items) -> Features:
        """The features of these images. They are resized and never cropped."""
        (network, device), torch = self._network, needs("torch")
        pixels = torch.from_numpy(np.ascontiguousarray(as_rgb(batch))).to(device)
        pixels = pixels.permute(0, 3, 1, 2).float() / 255.0
        pixels = torch.nn.functional.interpolate(pixels, (self.size, self.size), mode="bicubic", antialias=True)
        mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in self.scaling)
        with torch.inference_mode():
            out = self._features(network((pixels.clamp(0.0, 1.0) - mean) / std))
        return np.asarray(out.float().cpu().numpy(), dtype=np.float32)


class ViT(_TorchImages):
    """Vision transformer pre-trained on ImageNet-21k (Dosovitskiy et al. 2020). Features are its class token.

    They are 768 wide, as in the paper, or as wide as the model that you name or whose folder you give.

    >>> ViT().name, ViT().n_features, ViT("google/vit-large-patch16-224-in21k").n_features
    ('vit-base-patch16-224-in21k', 768, 1024)
    """

    scaling = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(self, model: str = "google/vit-base-patch16-224-in21k", device: str | None = None):
        self.model, self.device = model, device
        self.name = model.rsplit("/", 1)[-1]

    @cached_property
    def n_features(self) -> int:  # type: ignore[override]
        """The width of the class token, by the name of the model or by its configuration."""
        known = next((width for size, width in _VIT_WIDTHS.items() if f"vit-{size}-" in self.name), None)
        return known or int(needs("transformers").ViTConfig.from_pretrained(self.model).hidden_size)

    def _loaded(self) -> Any:
        return needs("transformers").ViTModel.from_pretrained(self.model, add_pooling_layer=False)

    def _features(self, out: Any) -> Any:
        return out.last_hidden_state[:, 0]


class ResNet50(_TorchImages):
    """ResNet-50 trained on ImageNet (He et al. 2016). It gives 1000 logits, as in the paper, or 2048 pooled features.

    >>> ResNet50().n_features, ResNet50(layer="pooled").n_features
    (1000, 2048)
    """

    scaling = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(
        self,
        layer: Literal["logits", "pooled"] = "logits",
        weights: str = "IMAGENET1K_V1",
        size: int = 224,
        device: str | None = None,
    ):
        if layer not in {"logits", "pooled"}:
            raise InvalidInputError(f"layer must be 'logits' or 'pooled', got {layer!r}")
        self.layer, self.weights, self.size, self.device = layer, weights, size, device
        self.name = f"resnet50-{weights.lower()}-{layer}-{size}"  # each of them changes the features
        self.n_features = 1000 if layer == "logits" else 2048

    def _loaded(self) -> Any:
        network = needs("torchvision.models").resnet50(weights=self.weights)
        if self.layer == "pooled":
            network.fc = needs("torch").nn.Identity()
        return network


@lru_cache(maxsize=8)
def find_extractor(model: str, prompt: str | None = None) -> Extractor:
    """The extractor with this name or in this folder, as `indknn.features.find_extractor`, and more for images.

    These are `resnet50` (2048 pooled features), `resnet50-logits` (its 1000 outputs, as in the paper), names that begin
    with `google/vit-`, and folders that hold such a transformer.

    >>> find_extractor("all-MiniLM-L6-v2").n_features, find_extractor("resnet50").n_features
    (384, 2048)
    >>> find_extractor("resnet50-logits").n_features
    1000
    """
    if model in {"resnet50", "resnet50-logits"}:
        return ResNet50("pooled" if model == "resnet50" else "logits")
    config = Path(model) / "config.json"
    if model_file(Path(model)) is None and config.is_file():
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
        return ViT(model) if kind == "vit" else features.find_extractor(model, prompt)
    return ViT(model) if model.startswith("google/vit-") else features.find_extractor(model, prompt)


def reads_images(extractor: Extractor) -> bool:
    """Whether an extractor is for images. Otherwise it is for texts."""
    return isinstance(extractor, OnnxImage | _TorchImages)


class ImageFiles(Sequence[bytes]):
    """A sequence of the contents of files, by which the cache knows them. Only those of one slice are in memory."""

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

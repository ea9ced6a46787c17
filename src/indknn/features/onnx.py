"""Extractors for texts and images from a folder with an ONNX model (`pip install 'indknn[onnx]'`).

They do not need PyTorch. Every item goes through the network separately, without padding, on one thread. So the
features of an item never depend on another item (rule 1), and public and private items get the same bits.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.features.base import Features, Items, needs

_MEAN, _STD, _SIZE = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 224
_LONGEST = 512  # the most tokens, if the model does not say


def model_file(folder: Path) -> Path | None:
    """The ONNX file of a model in this folder, if there is one."""
    found = (folder / "model.onnx", folder / "onnx" / "model.onnx")
    return next((path for path in found if path.is_file()), None)


class OnnxExtractor(ABC):
    """The base of both kinds: the network, its name and the length of its features."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        found = model_file(self.folder)
        if found is None:
            raise InvalidInputError(f"{self.folder} must hold model.onnx or onnx/model.onnx")
        self.file = found

    @cached_property
    def name(self) -> str:
        """The name of the folder and a digest of the weights."""
        with self.file.open("rb") as file:
            return f"{self.folder.resolve().name}-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"

    @cached_property
    def n_features(self) -> int:
        """The length of a row."""
        return len(self._one(self._sample()))

    def __call__(self, batch: Items) -> Features:
        """The features of these items. Each is computed separately."""
        rows = [self._one(item) for item in batch]
        return np.stack(rows) if rows else np.zeros((0, self.n_features), dtype=np.float32)

    @abstractmethod
    def _one(self, item: Any) -> npt.NDArray[np.float32]:
        """The features of one item."""

    @abstractmethod
    def _sample(self) -> Any:
        """Any item. Its features show how long a row is."""

    @cached_property
    def _network(self) -> Any:
        runtime = needs("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.use_deterministic_compute = True
        return runtime.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])

    def _settings(self, name: str) -> dict[str, Any]:
        """The contents of a JSON file of the model. Empty if there is no such file."""
        path = self.folder / name
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


class OnnxText(OnnxExtractor):
    """Sentence embeddings of length one, from the model and `tokenizer.json` in a folder.

    The states of all tokens are averaged. If `1_Pooling/config.json` says so, the state of the first token is used.
    """

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = needs("tokenizers", "onnx").Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(int(self._settings("sentence_bert_config.json").get("max_seq_length") or _LONGEST))
        return tokenizer

    @cached_property
    def _takes_first(self) -> bool:
        return bool(self._settings("1_Pooling/config.json").get("pooling_mode_cls_token"))

    def _sample(self) -> str:
        return "text"

    def _one(self, item: Any) -> npt.NDArray[np.float32]:
        tokens = self._tokenizer.encode(str(item))
        given = {"input_ids": tokens.ids, "attention_mask": tokens.attention_mask, "token_type_ids": tokens.type_ids}
        wanted = [one.name for one in self._network.get_inputs()]
        inputs = {name: np.array([given[name]], dtype=np.int64) for name in wanted}
        states = np.asarray(self._network.run(None, inputs)[0][0], dtype=np.float64)
        row = states if states.ndim == 1 else states[0] if self._takes_first else states.mean(axis=0)
        return np.asarray(row / max(float(np.sqrt((row * row).sum())), 1e-12), dtype=np.float32)


class OnnxImage(OnnxExtractor):
    """Features of images, from the model in a folder. `preprocessor_config.json` gives the image size and scaling.

    If the network returns a state for every patch, the first state is used. If it returns a map, its mean is used.
    """

    def _sample(self) -> Any:
        return np.zeros((8, 8, 3), dtype=np.uint8)

    def _one(self, item: Any) -> npt.NDArray[np.float32]:
        image, about = needs("PIL.Image", "onnx"), self._settings("preprocessor_config.json")
        size = about.get("size", _SIZE)
        if isinstance(size, dict):
            size = size.get("height") or size.get("shortest_edge") or _SIZE
        shown = image.fromarray(as_rgb(np.asarray(item)[None])[0])
        pixels = np.asarray(shown.resize((int(size), int(size)), image.Resampling.BICUBIC), dtype=np.float32) / 255.0
        mean, std = (np.float32(about.get(name, usual)) for name, usual in (("image_mean", _MEAN), ("image_std", _STD)))
        chosen = np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1)[None], dtype=np.float32)
        (name,) = (one.name for one in self._network.get_inputs())
        out = np.asarray(self._network.run(None, {name: chosen})[0][0], dtype=np.float32)
        return out if out.ndim == 1 else out[0] if out.ndim == 2 else out.reshape(len(out), -1).mean(axis=1)


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

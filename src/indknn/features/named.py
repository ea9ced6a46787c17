"""Finds an extractor by the name of its model, or by the folder that holds the model."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from indknn.errors import InvalidInputError
from indknn.features.base import Extractor
from indknn.features.onnx import OnnxImage, OnnxText, model_file
from indknn.features.sentences import SentenceTransformer
from indknn.features.vision import ResNet50, ViT


@lru_cache(maxsize=8)
def find_extractor(model: str) -> Extractor:
    """The extractor with this name or in this folder. It is loaded once. A folder needs no internet connection.

    A folder with an ONNX file runs without PyTorch. Allowed names are `resnet50` (pooled, for images), names of vision
    transformers that begin with `google/vit-`, and names that the sentence-transformers library knows.

    >>> find_extractor("all-MiniLM-L6-v2").n_features, find_extractor("resnet50").n_features
    (384, 2048)
    """
    folder = Path(model)
    if folder.is_dir():
        return _in_folder(folder)
    if not model or folder.is_absolute() or model.startswith("."):
        raise InvalidInputError(f"{model!r} must be the name of a model, or a folder that holds one")
    if model == "resnet50":
        return ResNet50("pooled")
    return ViT(model) if model.startswith("google/vit-") else SentenceTransformer(model)


def _in_folder(folder: Path) -> Extractor:
    if model_file(folder) is not None:
        return OnnxText(folder) if (folder / "tokenizer.json").is_file() else OnnxImage(folder)
    config = folder / "config.json"
    if not config.is_file():
        raise InvalidInputError(f"{folder} must hold model.onnx, or a model of sentence-transformers or transformers")
    kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    return ViT(str(folder)) if kind == "vit" else SentenceTransformer(folder)


def reads_images(extractor: Extractor) -> bool:
    """Whether an extractor is for images. Otherwise it is for texts."""
    return isinstance(extractor, OnnxImage | ResNet50 | ViT)

"""Public feature extractors for texts and images. Large libraries are imported on first use.

`indknn_lab.features` has the image extractors of the paper, and a cache for what was extracted.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from indknn.errors import InvalidInputError
from indknn.features.base import Extractor
from indknn.features.onnx import OnnxImage, OnnxText, model_file
from indknn.features.sentences import SentenceTransformer

__all__ = ["Extractor", "OnnxImage", "OnnxText", "SentenceTransformer", "find_extractor"]


@lru_cache(maxsize=8)
def find_extractor(model: str) -> Extractor:
    """The extractor with this name or in this folder. It is loaded once. A folder needs no internet connection.

    A folder with an ONNX file runs without PyTorch. Allowed names are those that the sentence-transformers library
    knows.

    >>> find_extractor("all-MiniLM-L6-v2").n_features
    384
    """
    folder = Path(model)
    if not folder.is_dir():
        if not model or folder.is_absolute() or model.startswith("."):
            raise InvalidInputError(f"{model!r} must be the name of a model, or a folder that holds one")
        return SentenceTransformer(model)
    if model_file(folder) is not None:
        return OnnxText(folder) if (folder / "tokenizer.json").is_file() else OnnxImage(folder)
    if not (folder / "config.json").is_file():
        raise InvalidInputError(f"{folder} must hold model.onnx, or a model of sentence-transformers or transformers")
    return SentenceTransformer(folder)

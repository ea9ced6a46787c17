"""An extractor by the name of its model, or by the folder that holds it."""

from __future__ import annotations

from functools import lru_cache

from indknn.features.base import Extractor
from indknn.features.sentences import SentenceTransformer


@lru_cache(maxsize=8)
def find_extractor(model: str) -> Extractor:
    """The text extractor of this name, or in this folder. It is loaded once."""
    return SentenceTransformer(model)

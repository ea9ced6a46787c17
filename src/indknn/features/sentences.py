"""The text extractor of the paper, a sentence-transformer (Reimers & Gurevych 2019)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from indknn.features.base import Features, Items, needs

_KNOWN = {"all-roberta-large-v1": 1024, "all-mpnet-base-v2": 768, "all-MiniLM-L6-v2": 384}


class SentenceTransformer:
    """Sentence embeddings of length one. The paper's model is ``all-roberta-large-v1``, with 1024 features.

    `model` is a name known to the sentence-transformers library, or a folder that holds such a model. `name` is the
    name in the cache, by default the last part of `model`.

    >>> SentenceTransformer().name, SentenceTransformer().n_features
    ('all-roberta-large-v1', 1024)
    """

    def __init__(
        self,
        model: str | Path = "all-roberta-large-v1",
        *,
        name: str | None = None,
        device: str | None = None,
    ):
        self.model = str(model)
        self.name = Path(model).name if name is None else name
        self.device = device

    @property
    def n_features(self) -> int:
        """The length of a row. It is known for the usual models. Other models are loaded to find it."""
        return _KNOWN.get(self.name) or int(self._network.get_sentence_embedding_dimension())

    @cached_property
    def _network(self) -> Any:
        return needs("sentence_transformers").SentenceTransformer(self.model, device=self.device)

    def __call__(self, batch: Items) -> Features:
        """The embeddings of these texts."""
        texts = [str(text) for text in batch]
        out = self._network.encode(texts, batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(out, dtype=np.float32)

"""The image extractors of the paper: ViT (ImageNet-21k), ResNet-50 (ImageNet), SimCLRv2.

Models are fetched by their libraries on first use. Nothing heavy is imported before a model is used.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from indknn.errors import InvalidInputError
from indknn.features.base import Features, Items, needs
from indknn.features.images import as_rgb, best_device, torch_batch

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HALF = (0.5, 0.5, 0.5)


class ViT:
    """Vision transformer pre-trained on ImageNet-21k (Dosovitskiy et al. 2020): its class token, 768 numbers.

    >>> ViT().name, ViT().n_features
    ('vit-base-patch16-224-in21k', 768)
    """

    n_features = 768

    def __init__(self, model: str = "google/vit-base-patch16-224-in21k", device: str | None = None):
        self.model = model
        self.device = device

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.model.rsplit("/", 1)[-1]

    @cached_property
    def _network(self) -> tuple[Any, str]:
        device = best_device(self.device)
        network = needs("transformers").ViTModel.from_pretrained(self.model, add_pooling_layer=False)
        return network.eval().to(device), device

    def __call__(self, batch: Items) -> Features:
        """The class token after the last layer."""
        network, device = self._network
        with needs("torch").inference_mode():
            states = network(torch_batch(batch, 224, _HALF, _HALF, device)).last_hidden_state
        return np.asarray(states[:, 0].float().cpu().numpy(), dtype=np.float32)


class ResNet50:
    """ResNet-50 trained on ImageNet (He et al. 2016): 1000 logits, as in the paper, or 2048 pooled features.

    >>> ResNet50().n_features, ResNet50(layer="pooled").n_features
    (1000, 2048)
    """

    def __init__(
        self,
        layer: Literal["logits", "pooled"] = "logits",
        weights: str = "IMAGENET1K_V1",
        size: int = 224,
        device: str | None = None,
    ):
        if layer not in {"logits", "pooled"}:
            raise InvalidInputError(f"layer must be 'logits' or 'pooled', got {layer!r}")
        self.layer = layer
        self.weights = weights
        self.size = size
        self.device = device

    @property
    def name(self) -> str:
        """Weights, layer and image size, all of which change the features."""
        return f"resnet50-{self.weights.lower()}-{self.layer}-{self.size}"

    @property
    def n_features(self) -> int:
        """1000 logits or 2048 pooled features."""
        return 1000 if self.layer == "logits" else 2048

    @cached_property
    def _network(self) -> tuple[Any, str]:
        device = best_device(self.device)
        network = needs("torchvision.models").resnet50(weights=self.weights)
        if self.layer == "pooled":
            network.fc = needs("torch").nn.Identity()
        return network.eval().to(device), device

    def __call__(self, batch: Items) -> Features:
        """The chosen layer's output."""
        network, device = self._network
        with needs("torch").inference_mode():
            out = network(torch_batch(batch, self.size, _IMAGENET_MEAN, _IMAGENET_STD, device))
        return np.asarray(out.float().cpu().numpy(), dtype=np.float32)


class SimCLRv2:
    """SimCLRv2 (Chen et al. 2020) from its authors' TensorFlow 2 SavedModel: pooled features, 2048 per width.

    `path` is a local copy of, say, ``pretrained/r50_1x_sk0/saved_model`` from their public storage; without
    labels in its training, so public in the strictest sense. Images go in as numbers in [0, 1].

    >>> SimCLRv2("models/r50_2x_sk0/saved_model").name, SimCLRv2("models/r50_2x_sk0/saved_model").n_features
    ('simclrv2-r50_2x_sk0', 4096)
    """

    def __init__(self, path: Path | str, n_features: int | None = None):
        self.path = Path(path)
        parts = [part for part in self.path.parts if part != "saved_model"]
        self._model = parts[-1] if parts else "model"
        self._n_features = n_features

    @property
    def name(self) -> str:
        """The checkpoint's own name."""
        return f"simclrv2-{self._model}"

    @property
    def n_features(self) -> int:
        """As given, else 2048 times the width in the checkpoint's name (r50_2x_sk0 is two wide)."""
        if self._n_features is not None:
            return self._n_features
        for word in self._model.split("_"):
            if word.endswith("x") and word[:-1].isdigit():
                return 2048 * int(word[:-1])
        raise InvalidInputError(f"n_features must be given: the name {self._model!r} does not tell the width")

    @cached_property
    def _network(self) -> Any:
        if not (self.path / "saved_model.pb").is_file():
            raise InvalidInputError(f"{self.path} is not a SavedModel: it has no saved_model.pb")
        return needs("tensorflow", "simclr").saved_model.load(str(self.path))

    def __call__(self, batch: Items) -> Features:
        """The features before the projection head."""
        tf = needs("tensorflow", "simclr")
        pixels = tf.constant(as_rgb(batch).astype(np.float32) / 255.0)
        pixels = tf.clip_by_value(tf.image.resize(pixels, (224, 224), method="bicubic"), 0.0, 1.0)
        out = self._network(pixels, trainable=False)
        return np.asarray(out["final_avg_pool"].numpy(), dtype=np.float32)

"""The image extractors of the paper: ViT (ImageNet-21k) and ResNet-50 (ImageNet).

Their libraries download the models on first use. No large library is imported before a model is used.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from indknn.errors import InvalidInputError
from indknn.features.base import Features, Items, needs
from indknn.features.images import best_device, torch_batch

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HALF = (0.5, 0.5, 0.5)


class ViT:
    """Vision transformer pre-trained on ImageNet-21k (Dosovitskiy et al. 2020). Features are its class token, 768 wide.

    >>> ViT().name, ViT().n_features
    ('vit-base-patch16-224-in21k', 768)
    """

    n_features = 768

    def __init__(self, model: str = "google/vit-base-patch16-224-in21k", device: str | None = None):
        self.model = model
        self.device = device

    @property
    def name(self) -> str:
        """The name of the model, without the part before the slash."""
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
    """ResNet-50 trained on ImageNet (He et al. 2016). It gives 1000 logits, as in the paper, or 2048 pooled features.

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
        """The name contains weights, layer and image size, because each of them changes the features."""
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
        """The output of the chosen layer."""
        network, device = self._network
        with needs("torch").inference_mode():
            out = network(torch_batch(batch, self.size, _IMAGENET_MEAN, _IMAGENET_STD, device))
        return np.asarray(out.float().cpu().numpy(), dtype=np.float32)

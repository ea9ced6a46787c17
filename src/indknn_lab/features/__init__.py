"""Features of many items: a cache for what was extracted, and the image extractors of the paper."""

from indknn_lab.features.cache import extract
from indknn_lab.features.vision import ResNet50, ViT, find_extractor

__all__ = ["ResNet50", "ViT", "extract", "find_extractor"]

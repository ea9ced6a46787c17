"""Public feature extractors, and a cache for their features. Large libraries are imported on first use."""

from indknn.features.base import Extractor
from indknn.features.cache import extract
from indknn.features.named import find_extractor
from indknn.features.onnx import OnnxImage, OnnxText
from indknn.features.sentences import SentenceTransformer
from indknn.features.vision import ResNet50, ViT

__all__ = [
    "Extractor",
    "OnnxImage",
    "OnnxText",
    "ResNet50",
    "SentenceTransformer",
    "ViT",
    "extract",
    "find_extractor",
]

"""Data that ships with the package, and loaders for data that does not."""

from indknn.datasets.fashion import Dataset, load_fashion_mini

__all__ = ["Dataset", "load_fashion_mini"]

"""Loaders for files of features and for tables."""

from indknn_lab.datasets.features import (
    Dataset,
    FeatureFolder,
    find_datasets,
    load_fashion_mini,
    load_features,
    load_table,
)

__all__ = ["Dataset", "FeatureFolder", "find_datasets", "load_fashion_mini", "load_features", "load_table"]

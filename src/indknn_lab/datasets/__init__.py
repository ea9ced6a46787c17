"""Loaders for features and for the paper's data sets in their original formats."""

from indknn_lab.datasets.features import (
    Dataset,
    FeatureFolder,
    find_datasets,
    load_fashion_mini,
    load_features,
    load_table,
)
from indknn_lab.datasets.originals import RawDataset, load_ag_news, load_cifar10, load_dbpedia14, load_fashion_mnist

__all__ = [
    "Dataset", "FeatureFolder", "RawDataset", "find_datasets", "load_ag_news", "load_cifar10", "load_dbpedia14",
    "load_fashion_mini", "load_fashion_mnist", "load_features", "load_table",
]  # fmt: skip

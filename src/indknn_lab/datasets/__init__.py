"""Data that ships with the package, and loaders for data that does not."""

from indknn.cli.demonstration import Dataset, load_fashion_mini
from indknn_lab.datasets.cifar import load_cifar10
from indknn_lab.datasets.idx import load_fashion_mnist
from indknn_lab.datasets.raw import RawDataset
from indknn_lab.datasets.registry import Found, find_datasets
from indknn_lab.datasets.tables import load_features, load_table
from indknn_lab.datasets.text import load_ag_news, load_dbpedia14

__all__ = [
    "Dataset",
    "Found",
    "RawDataset",
    "find_datasets",
    "load_ag_news",
    "load_cifar10",
    "load_dbpedia14",
    "load_fashion_mini",
    "load_fashion_mnist",
    "load_features",
    "load_table",
]

"""The methods that Ind-KNN is compared with, as scikit-learn classifiers.

They are naive private kNN, Private-kNN, Linear NoisySGD, and what labelled public rows say alone.
"""

from indknn_lab.baselines.knn import NaivePrivateKNN, PrivateKNN
from indknn_lab.baselines.noisy_sgd import LinearNoisySGD
from indknn_lab.public_rows import public_rows_only

__all__ = ["LinearNoisySGD", "NaivePrivateKNN", "PrivateKNN", "public_rows_only"]

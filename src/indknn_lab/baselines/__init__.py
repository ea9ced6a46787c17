"""The methods that Ind-KNN is compared with, as scikit-learn classifiers.

They are naive private kNN, Private-kNN and Linear NoisySGD.
"""

from indknn_lab.baselines.knn import NaivePrivateKNN, PrivateKNN
from indknn_lab.baselines.noisy_sgd import LinearNoisySGD

__all__ = ["LinearNoisySGD", "NaivePrivateKNN", "PrivateKNN"]

"""What Ind-KNN is measured against, with the same face: naive private kNN, Private-kNN, Linear NoisySGD."""

from indknn_lab.baselines.naive import NaivePrivateKNN
from indknn_lab.baselines.noisy_sgd import LinearNoisySGD, noise_multiplier_for
from indknn_lab.baselines.private_knn import PrivateKNN

__all__ = ["LinearNoisySGD", "NaivePrivateKNN", "PrivateKNN", "noise_multiplier_for"]

"""Compares the accuracy of the default with private training, on feature sets with all of their test queries.

    python benchmarks/accuracy.py --data ../shared/data
    python benchmarks/accuracy.py --data ../shared/data --sets cifar10-r50 digits --epsilon 1 --rival

The folder holds npz files with X_train, scale_train, y_train and the same for the queries. `digits` is the data set of
scikit-learn, with 1,300 records. All queries go through `predict` in one call, so the first of them are used as public
rows. Nothing is tuned. `--rival` trains LinearNoisySGD at three learning rates and shows the best. No budget covers
this choice.
"""

import argparse
import warnings
from pathlib import Path
from statistics import median

import numpy as np
from sklearn.datasets import load_digits

from indknn import IndKNNClassifier

SETS = ("agnews-minilm", "cifar10-r50", "fmnist-r50", "dbpedia-minilm", "digits")
RATES = (4.0, 16.0, 64.0)


def load(folder, name, seed):
    """Private records and public queries, with their labels."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(X))
        X, y = X[order], y[order]
        X = X - X[1300:].mean(axis=0)  # of the public queries
        return X[:1300], y[:1300], X[1300:], y[1300:]
    held = np.load(folder / f"{name}.npz")
    X, Q = (held[f"X_{part}"] * held[f"scale_{part}"][:, None] for part in ("train", "test"))
    return X, held["y_train"], Q, held["y_test"]


def accuracy(folder, name, epsilon, seed):
    """Of the default."""
    X, y, Q, truth = load(folder, name, seed)
    model = IndKNNClassifier(epsilon, random_state=seed, classes=np.unique(y)).fit(X, y)
    return float((model.predict(Q) == truth).mean())


def rival(folder, name, epsilon, seed, rate):
    """Of private training, once."""
    from indknn_lab.baselines.noisy_sgd import LinearNoisySGD

    X, y, Q, truth = load(folder, name, seed)
    made = LinearNoisySGD(epsilon=epsilon, learning_rate=rate, random_state=seed, classes=np.unique(y)).fit(X, y)
    return float((made.predict(Q) == truth).mean())


def main():
    """Print a line for each set and ε."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the npz files")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.25, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rival", action="store_true", help="private training beside it")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # a seed is not private, and these are not people
    for name in asked.sets:
        for epsilon in asked.epsilon:
            found = [accuracy(asked.data, name, epsilon, seed) for seed in range(asked.seeds)]
            line = (
                f"{name:<16} epsilon {epsilon:<5g} default {median(found):.4f} ({min(found):.4f} to {max(found):.4f})"
            )
            if asked.rival:
                best = max(
                    median(rival(asked.data, name, epsilon, seed, rate) for seed in range(asked.seeds))
                    for rate in RATES
                )
                line += f"   NoisySGD {best:.4f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()

import numpy as np
import pytest


def write_features(folder, name, *, n=1500, queries=160, classes=3, width=12, seed=0):
    """A feature file of directions around one centre per class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width))
    y = rng.integers(classes, size=n + queries)
    X = (centres[y] + 0.8 * rng.normal(size=(n + queries, width))).astype(np.float32)
    path = folder / f"{name}.npz"
    np.savez(path, X_train=X[:n], y_train=y[:n], X_test=X[n:], y_test=y[n:])
    return path


@pytest.fixture(scope="session")
def make_features():
    """Writes a tiny feature file: folder, name, and how large."""
    return write_features


@pytest.fixture(scope="session")
def make_toys():
    """Makes a folder with a tiny cifar10-toy.npz and agnews-toy.npz."""

    def make(folder):
        folder.mkdir()
        write_features(folder, "cifar10-toy")
        write_features(folder, "agnews-toy", classes=2, seed=1)
        return folder

    return make


@pytest.fixture
def features(tmp_path, make_toys):
    """A folder of tiny features."""
    return make_toys(tmp_path / "features")

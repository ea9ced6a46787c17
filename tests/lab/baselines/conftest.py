import os
from pathlib import Path

import numpy as np
import pytest

from indknn_lab.datasets import load_features


@pytest.fixture(scope="session")
def blobs():
    """Four directions with noise around them: 6,000 records, 300 queries."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(4, 16))
    y = rng.integers(4, size=6300)
    X = centres[y] + 0.7 * rng.normal(size=(6300, 16))
    names = np.array(["ash", "beech", "elm", "oak"])[y]
    return X[:6000], names[:6000], X[6000:], names[6000:]


@pytest.fixture(scope="session")
def real():
    """Loads one of the real feature sets, or skips and says why."""
    root = Path(__file__).resolve().parents[3]
    folder = Path(os.environ.get("INDKNN_DATA", root.parent / "shared" / "data"))

    def load(name):
        if not (folder / name).is_file():
            pytest.skip(f"{name} is not in INDKNN_DATA nor beside the checkout")
        return load_features(folder / name)

    return load

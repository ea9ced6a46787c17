"""What several tests need."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from helpers.places import in_memory
from indknn.core.noise import SecureNoise
from indknn.store import filehome

# differing_executors: the contracts are inherited, so one property runs for several implementations on purpose.
CALM = [HealthCheck.too_slow, HealthCheck.differing_executors]
# The same examples each time: whoever changes one thing must not be told of another. `thorough` looks for new ones.
settings.register_profile("default", derandomize=True, deadline=None, suppress_health_check=CALM)
settings.register_profile("thorough", derandomize=False, deadline=None, suppress_health_check=CALM, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

if "TMPDIR" not in os.environ and (memory := in_memory()):
    os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


@pytest.fixture(autouse=True, scope="session")
def little_room():
    """Four megabytes of random bytes beside every store are most of the work of making one.

    Tests of full disks put them back.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filehome, "_SPARE", 1 << 14)
        yield


@pytest.fixture
def known_noise(monkeypatch):
    """The exact sampler with the same entropy each time, for tests of how good noisy answers are."""
    rng, made = np.random.default_rng(0), SecureNoise.__init__
    monkeypatch.setattr(SecureNoise, "__init__", lambda noise, entropy=rng.bytes: made(noise, entropy))


@pytest.fixture
def shared_data():
    """The folder of real feature sets, where there is one."""
    folder = Path(os.environ.get("INDKNN_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the real feature sets are not here; set INDKNN_DATA to their folder")
    return folder


def blobs(n, n_classes, n_features, seed=0, spread=0.6):
    """Directions around one centre per class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, n_features))
    y = rng.integers(n_classes, size=n)
    return centres[y] + spread * rng.normal(size=(n, n_features)), y


@pytest.fixture
def data():
    """Records and queries that are easy to tell apart: X, y, Q, yq."""
    X, y = blobs(9300, 3, 12)
    return X[:9000], y[:9000], X[9000:], y[9000:]

"""A digest of what the product answers and charges. It changes if the behaviour changes, but not if code only moves."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np

from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.settings import Settings

_VOTES: tuple[dict[str, Any], ...] = (
    {"reuse": "none", "prior": "none", "tau": 0.4, "sigma2": 0.4, "max_queries": 100},
    {"reuse": "none", "prior": "none", "tau": None, "sigma2": None, "max_queries": 100},
)
_MODELS: tuple[dict[str, Any], ...] = (
    {"prior": "model", "max_queries": None},
    {"prior": "model", "max_queries": 400, "sigma2": 0.1},  # so little noise that votes are used
)


@lru_cache
def behaviour(*, models: bool) -> str:
    """The digest of small seeded runs with the defaults of the product: only votes, or also models."""
    digest = hashlib.blake2b(digest_size=6)
    for settings in _MODELS if models else _VOTES:
        digest.update(repr(transcript(settings)).encode())
    return digest.hexdigest()


def transcript(settings: dict[str, Any]) -> list[Any]:
    """The answers of a small store in which somebody leaves and somebody arrives, and what each person has paid."""
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=1200)
    X = rng.normal(size=(3, 6))[y] + 0.7 * rng.normal(size=(1200, 6))
    engine = Engine(Settings(n_features=6, classes=(0, 1, 2), epsilon=1.0, delta=1e-5, **settings), SeededNoise(1))
    people = [str(i) for i in range(800)]
    engine.add(X[:700], y[:700], people[:700])
    answers = engine.predict(X[800:1000]).tolist()
    engine.forget_owners(people[:50])
    engine.add(X[700:800], y[700:800], people[700:])
    for start in range(1000, 1200, 50):
        answers += engine.predict(X[start : start + 50]).tolist()
    return [answers, engine.spent(people[50:]).tolist()]

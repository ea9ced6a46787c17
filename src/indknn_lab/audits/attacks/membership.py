"""Membership inference from the answers, as in the literature, compared with the theoretical bound.

A coin decides for each person with an unusual record whether the record is in the store. The attacker knows every
record and its label, asks a few queries at the record, and counts how often its label is the answer (Shokri et al.
2017). For nearest neighbours, queries at the record itself are the strongest. μ-GDP allows any attacker a true positive
rate of at most Φ(Φ⁻¹(FPR) + μ). The control is the same vote without noise and budgets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from scipy.integrate import trapezoid
from scipy.special import ndtr, ndtri

from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.types import BoolArray, FloatArray
from indknn_lab.audits.bounds import lower_bounds
from indknn_lab.audits.scenarios import BASE

_D, _ASKED = 64, 6
_POINTS = np.linspace(0.0, 1.0, 41)


@dataclass(frozen=True)
class Membership:
    """ROC curves at the same false positive rates, and numbers that summarise them."""

    people: int
    claimed_epsilon: float
    claimed_mu: float
    mu: float
    fpr: tuple[float, ...]
    private: tuple[float, ...]
    control: tuple[float, ...]
    bound: tuple[float, ...]
    auc: float
    control_auc: float
    bound_auc: float

    @property
    def holds(self) -> bool:
        """Whether the attack stays below the bound."""
        return self.mu <= self.claimed_mu


def membership(people: int, seed: int, error: float) -> Membership:
    """Attack one store. About half of the unusual people have their record in it."""
    settings = replace(BASE, n_features=_D, tau=0.8, max_queries=1000, sigma2=0.2)
    rng = np.random.default_rng([seed, 3])
    X, y, member = rng.normal(size=(people, _D)), rng.integers(2, size=people), rng.integers(2, size=people) == 1
    engine = Engine(settings, SeededNoise(seed))
    engine.add(X[member], y[member], np.flatnonzero(member).tolist())
    said, plain = np.zeros(people), np.zeros(people)
    for _ in range(_ASKED):
        queries = X + 0.05 * rng.normal(size=X.shape)
        said += engine.predict(queries) == y
        near = engine.shard.scan(settings.quantise(queries, "Q"), int(0.8 * 2**20))
        votes = [np.bincount(y[member][s.slots], weights=s.kappa, minlength=2) for s in near]
        plain += [int(np.argmax(v)) == label if v.any() else 0.5 for v, label in zip(votes, y, strict=True)]
    scores, control = said + 1e-6 * rng.random(people), plain + 1e-6 * rng.random(people)
    mu = sqrt(2.0 * settings.budget)
    bound = np.concatenate([[0.0], ndtr(ndtri(_POINTS[1:-1]) + mu), [1.0]])
    private_roc, control_roc = _roc(scores, member), _roc(control, member)
    return Membership(
        people=people,
        claimed_epsilon=settings.epsilon,
        claimed_mu=mu,
        mu=lower_bounds(scores[member], scores[~member], settings.delta, error).mu,
        fpr=tuple(_POINTS.tolist()),
        private=tuple(private_roc.tolist()),
        control=tuple(control_roc.tolist()),
        bound=tuple(bound.tolist()),
        auc=_area(private_roc),
        control_auc=_area(control_roc),
        bound_auc=float(ndtr(mu / sqrt(2.0))),
    )


def _roc(scores: FloatArray, member: BoolArray) -> FloatArray:
    """True positive rates at the common false positive rates."""
    cuts = np.quantile(scores[~member], 1.0 - _POINTS)
    rates = (scores[member][None, :] > cuts[:, None]).mean(axis=1)
    rates[-1] = 1.0
    return np.asarray(rates)


def _area(rates: FloatArray) -> float:
    return float(trapezoid(rates, _POINTS))

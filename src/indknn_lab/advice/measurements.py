"""The project's own measurements, and what lies between them.

`measurements.json` is written by `benchmarks/advise.py` and by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import numpy as np

from indknn.errors import InvalidInputError

Method: TypeAlias = Literal["endless", "algorithm3", "private_knn", "noisy_sgd"]
_LEARNS = {"endless"}
"""More queries make these no worse, for they learn from them; the accuracy of the others can only fall."""


@dataclass(frozen=True)
class Estimate:
    """An accuracy between measurements, and in which quantities it lies outside them."""

    accuracy: float
    outside: tuple[str, ...]


@dataclass(frozen=True)
class Measurements:
    """Accuracies by data set, method, number of records, epsilon and load: queries, or retrainings for NoisySGD."""

    about: Mapping[str, Mapping[str, Any]]
    points: Mapping[tuple[str, str], Mapping[int, Mapping[float, Mapping[int, float]]]]

    @staticmethod
    def read(stored: Mapping[str, Any]) -> Measurements:
        """From what the benchmark wrote."""
        points: dict[tuple[str, str], dict[int, dict[float, dict[int, float]]]] = {}
        for p in stored["points"]:
            by_n = points.setdefault((p["data"], p["method"]), {}).setdefault(p["n"], {})
            by_n.setdefault(p["epsilon"], {})[p["load"]] = p["accuracy"]
        return Measurements(stored["data"], points)

    @property
    def data(self) -> list[str]:
        """The data sets."""
        return sorted(self.about)

    def estimate(self, data: str, method: Method, n: float, epsilon: float, load: float) -> Estimate:
        """Straight lines in the logarithms; at the edge, the edge. Never falls with epsilon."""
        if (data, method) not in self.points:
            raise InvalidInputError(f"nothing was measured of {method!r} on {data!r}")
        sizes = self.points[data, method]
        outside: list[str] = []
        found = []
        for size in sorted(sizes):
            by_epsilon = [_over_load(sizes[size][e], load, method) for e in sorted(sizes[size])]
            rising = np.maximum.accumulate(by_epsilon)  # what falls with ε is the noise of measuring
            found.append(_between(np.log(sorted(sizes[size])), rising, np.log(epsilon)))
        every = [at for by_epsilon in sizes.values() for at in by_epsilon.values()]
        loads = max(min(at) for at in every), min(max(at) for at in every)  # what was measured for all
        epsilons = max(map(min, sizes.values())), min(map(max, sizes.values()))
        what = "retrainings" if method == "noisy_sgd" else "queries"
        spans = (("n", n, (min(sizes), max(sizes))), ("epsilon", epsilon, epsilons), (what, load, loads))
        for name, value, (least, most) in spans:
            if not least <= value <= most:
                outside.append(f"{name} {value:,.10g} (measured: {least:,.10g} to {most:,.10g})")
        return Estimate(_between(np.log(sorted(sizes)), np.array(found), np.log(n)), tuple(outside))


def _over_load(accuracies: Mapping[int, float], load: float, method: Method) -> float:
    loads = sorted(accuracies)
    values = np.array([accuracies[x] for x in loads])
    if method not in _LEARNS:
        values = np.minimum.accumulate(values)
    return _between(np.log1p(loads), values, np.log1p(load))


def _between(at: Any, values: Any, wanted: float) -> float:
    return float(np.interp(wanted, at, values))


@cache
def measured() -> Measurements:
    """What ships with the package."""
    return Measurements.read(json.loads((files("indknn_lab.advice") / "measurements.json").read_text(encoding="utf-8")))

"""The project's own measurements, and interpolation between them.

Only `benchmarks/advise.py` writes `measurements.json`.
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


@dataclass(frozen=True)
class Estimate:
    """An estimated accuracy, and the quantities for which the task lies outside the measured range."""

    accuracy: float
    outside: tuple[str, ...]


@dataclass(frozen=True)
class Measurements:
    """Accuracies by data set, method, number of records, epsilon and load.

    The load is the number of queries, or for NoisySGD the number of retrainings.
    """

    about: Mapping[str, Mapping[str, Any]]
    points: Mapping[tuple[str, str], Mapping[int, Mapping[float, Mapping[int, float]]]]

    @staticmethod
    def read(stored: Mapping[str, Any]) -> Measurements:
        """Make the object from what the benchmark wrote."""
        points: dict[tuple[str, str], dict[int, dict[float, dict[int, float]]]] = {}
        for p in stored["points"]:
            by_n = points.setdefault((p["data"], p["method"]), {}).setdefault(p["n"], {})
            by_n.setdefault(p["epsilon"], {})[p["load"]] = p["accuracy"]
        return Measurements(stored["data"], points)

    @property
    def data(self) -> list[str]:
        """The names of the data sets."""
        return sorted(self.about)

    def title(self, data: str) -> str:
        """The title of a data set."""
        return str(self.about[data]["title"])

    def estimate(self, data: str, method: Method, n: float, epsilon: float, load: float) -> Estimate:
        """Interpolate linearly in the logarithms. Outside the measured range, its edge is used.

        The estimate never falls with epsilon.
        """
        if (data, method) not in self.points:
            raise InvalidInputError(f"nothing was measured of {method!r} on {data!r}")
        sizes = self.points[data, method]
        found = []
        for size in sorted(sizes):
            by_epsilon = [_over_load(sizes[size][e], load, method) for e in sorted(sizes[size])]
            rising = np.maximum.accumulate(by_epsilon)  # an accuracy that falls with ε is measurement noise
            found.append(np.interp(np.log(epsilon), np.log(sorted(sizes[size])), rising))
        every = [at for by_epsilon in sizes.values() for at in by_epsilon.values()]
        loads = max(min(at) for at in every), min(max(at) for at in every)  # the range that was measured for all
        epsilons = max(map(min, sizes.values())), min(map(max, sizes.values()))
        what = "retrainings" if method == "noisy_sgd" else "queries"
        spans = (("n", n, (min(sizes), max(sizes))), ("epsilon", epsilon, epsilons), (what, load, loads))
        outside = (
            f"{name} {value:,.10g} (measured: {least:,.10g} to {most:,.10g})"
            for name, value, (least, most) in spans
            if not least <= value <= most
        )
        return Estimate(float(np.interp(np.log(n), np.log(sorted(sizes)), found)), tuple(outside))


def _over_load(accuracies: Mapping[int, float], load: float, method: Method) -> float:
    loads = sorted(accuracies)
    values = np.array([accuracies[x] for x in loads])
    if method != "endless":  # which learns in rounds; the accuracy of other methods can only fall with queries
        values = np.minimum.accumulate(values)
    return float(np.interp(np.log1p(load), np.log1p(loads), values))


@cache
def measured() -> Measurements:
    """The measurements that are part of the package."""
    return Measurements.read(json.loads((files("indknn_lab.advice") / "measurements.json").read_text(encoding="utf-8")))

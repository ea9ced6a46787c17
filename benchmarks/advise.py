"""Measure what `indknn advise` knows: Ind-KNN, Private-kNN and NoisySGD on the same stores and streams.

    python benchmarks/advise.py --data FOLDER

FOLDER holds `agnews-*.npz` and `cifar10-*.npz` (docs/features.md). All rows of a file are shuffled; the first n play
the store, the next ones validate the rivals' parameters, the rest are the stream. A stream that is longer than the
data starts again, and a repeated query is charged as a new one. Ind-KNN runs as it comes, untuned; the rivals
get the best of a small grid on the validation rows, which nobody pays for. So where Ind-KNN is ahead, it is.

Every point is kept in `--cache` as soon as it is there, and a run that was stopped goes on. The file that ships with the
package is written from the points, by this script alone.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from indknn import IndKNNClassifier
from indknn.accounting import budget
from indknn.baselines import LinearNoisySGD
from indknn.baselines.pricing import noise_multiplier
from indknn.baselines.topk import SENSITIVITY
from indknn.datasets.registry import TITLES, find_datasets
from indknn.datasets.tables import load_features
from indknn.errors import PrivacyWarning
from indknn.experiments.fields import Data, Orders
from indknn.experiments.methods.private_knn import sampled_votes
from indknn.experiments.results import write_json
from indknn.noise import SeededNoise
from indknn.quantise import quantise
from indknn.tuning.scale import sigma2_for_store
from indknn.types import GRID

SHIPPED = Path(__file__).parents[1] / "src" / "indknn" / "advice" / "measurements.json"
DELTA = 1e-5
EPSILONS = (0.25, 0.5, 1.0, 2.0)
SIZES = {"agnews": (10_000, 25_000), "cifar10": (10_000, 40_000)}
QUERIES = (1_000, 10_000, 100_000)
RETRAININGS = (0, 10, 100, 1_000, 10_000)
SEEDS = 2
LONG = 100_000  # streams of this length are run once
VALIDATION, TEST = 1_000, 4_000
RATIOS, KS = (0.05, 0.2, 1.0), (25, 50, 100, 200, 400, 800, 1600)
RATES = (2.5, 10.0, 40.0, 160.0)


@dataclass(frozen=True)
class Case:
    """One shuffle of one file, cut into a store and the rest."""

    name: str
    n: int
    seed: int
    X: Any
    y: Any

    @classmethod
    def load(cls, path: Path, name: str, n: int, seed: int) -> Case:
        raw = load_features(path)
        X, y = np.concatenate([raw.X_train, raw.X_test]), np.concatenate([raw.y_train, raw.y_test]).astype(np.int64)
        order = np.random.default_rng(seed).permutation(len(X))
        return cls(name, n, seed, X[order], y[order])

    def stream(self, T: int) -> Any:
        first = self.n + VALIDATION
        return first + np.arange(T) % (len(self.X) - first)

    def store(self) -> tuple[Any, Any]:
        return self.X[: self.n], self.y[: self.n]

    def valid(self) -> Any:
        return np.arange(self.n, self.n + VALIDATION)

    def test(self) -> Any:
        return self.stream(TEST)


def endless(case: Case, epsilon: float) -> Iterator[tuple[dict[str, int], float]]:
    longest = QUERIES[-1] if case.seed == 0 else QUERIES[-2]
    model = IndKNNClassifier(epsilon, DELTA, random_state=case.seed, free_repeats=False).fit(*case.store())
    rows = case.stream(longest)
    right = np.concatenate([model.predict(case.X[part]) == case.y[part] for part in np.array_split(rows, 50)])
    for T in QUERIES:
        if T <= longest:
            yield {"queries": T}, float(right[:T].mean())


def algorithm3(case: Case, epsilon: float) -> Iterator[tuple[dict[str, int], float]]:
    for T in QUERIES:
        if T >= LONG and case.seed:
            continue
        sigma2 = sigma2_for_store(budget(epsilon, DELTA), T, case.n)
        model = IndKNNClassifier(
            epsilon, DELTA, reuse="none", max_queries=T, sigma2=sigma2, random_state=case.seed, free_repeats=False
        ).fit(*case.store())
        rows = case.stream(T)
        right = [model.predict(case.X[part]) == case.y[part] for part in np.array_split(rows, ceil(T / 2000))]
        yield {"queries": T}, float(np.concatenate(right).mean())


def private_knn(case: Case, epsilon: float) -> Iterator[tuple[dict[str, int], float]]:
    votes = _votes(case)
    rng = SeededNoise(case.seed)
    truth = case.y[np.concatenate([case.valid(), case.test()])]
    for T in QUERIES:
        found = []
        for (p, _), counts in votes.items():
            z = noise_multiplier(epsilon, DELTA, rate=p, steps=T)
            noise = rng.draw(ceil(z * SENSITIVITY * GRID), counts.size).reshape(counts.shape)
            right = np.argmax(counts * GRID + noise, axis=1) == truth
            found.append((right[:VALIDATION].mean(), right[VALIDATION:].mean()))
        yield {"queries": T}, float(max(found)[1])


_KEPT: dict[tuple[str, int, int], Any] = {}


def _votes(case: Case) -> dict[tuple[float, int], Any]:
    key = case.name, case.n, case.seed
    if key not in _KEPT:
        _KEPT.clear()
        rows = np.concatenate([case.valid(), case.test()])
        X, y = case.store()
        c = len(np.unique(case.y))
        data = Data(quantise(X), y, quantise(case.X[rows]), case.y[rows], c, X, case.X[rows])
        labels = Orders(data, case.n).labels(np.arange(len(rows)))
        _KEPT[key] = {
            (p, k): sampled_votes(labels, p, k, c, 1, case.seed) for p in RATIOS for k in KS if k <= p * case.n / 4
        }
    return _KEPT[key]


def noisy_sgd(case: Case, epsilon: float) -> Iterator[tuple[dict[str, int], float]]:
    def train(rate: float, retrainings: int) -> tuple[float, float]:
        model = LinearNoisySGD(
            epsilon, DELTA, learning_rate=rate, retrainings=retrainings, random_state=case.seed, n_records=case.n
        ).fit(*case.store())
        accuracy = [float((model.predict(case.X[r]) == case.y[r]).mean()) for r in (case.valid(), case.test())]
        return accuracy[0], accuracy[1]

    for retrainings in RETRAININGS:
        yield {"retrainings": retrainings}, max(train(rate, retrainings) for rate in RATES)[1]


METHODS: dict[str, Callable[[Case, float], Iterator[tuple[dict[str, int], float]]]] = {
    "endless": endless,
    "algorithm3": algorithm3,
    "private_knn": private_knn,
    "noisy_sgd": noisy_sgd,
}


def measure(folder: Path, cache: Path) -> None:
    """Every point that is not in the cache yet."""
    present = find_datasets(folder).present
    for seed in range(SEEDS):
        for name, sizes in SIZES.items():
            for n in sizes:
                case = None
                for method, run in METHODS.items():
                    for epsilon in EPSILONS:
                        path = cache / f"{name}-{n}-{seed}-{method}-{epsilon}.json"
                        if path.exists():
                            continue
                        case = case or Case.load(present[name][0], name, n, seed)
                        points = [{**at, "accuracy": accuracy} for at, accuracy in run(case, epsilon)]
                        shape = {"features": case.X.shape[1], "classes": len(np.unique(case.y))}
                        write_json(
                            path,
                            {"data": name, "n": n, "method": method, "epsilon": epsilon} | shape | {"points": points},
                        )
                        print(path.stem, [f"{p['accuracy']:.3f}" for p in points], flush=True)


def assemble(cache: Path) -> dict[str, Any]:
    """Medians over shuffles, in the order of a table."""
    found: dict[tuple[Any, ...], list[float]] = {}
    shapes: dict[str, dict[str, Any]] = {}
    for path in sorted(cache.glob("*.json")):
        run = json.loads(path.read_text())
        shapes[run["data"]] = {"title": TITLES[run["data"]], "features": run["features"], "classes": run["classes"]}
        for point in run["points"]:
            load = point.get("queries", point.get("retrainings"))
            found.setdefault((run["data"], run["method"], run["n"], run["epsilon"], load), []).append(point["accuracy"])
    points = [
        {
            **dict(zip(("data", "method", "n", "epsilon", "load"), key, strict=True)),
            "accuracy": round(median(a), 4),
            "runs": len(a),
        }
        for key, a in sorted(found.items())
    ]
    return {
        "written by": "benchmarks/advise.py",
        "load": "queries, for NoisySGD retrainings",
        "delta": DELTA,
        "data": shapes,
        "points": points,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("out/advise"))
    parser.add_argument("--out", type=Path, default=SHIPPED)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)  # seeded on purpose
    measure(options.data, options.cache)
    write_json(options.out, assemble(options.cache))


if __name__ == "__main__":
    main()

"""Measures which tool fits which task: Ind-KNN, Private-kNN and NoisySGD on the same stores and streams.

    python benchmarks/advise.py --data FOLDER

FOLDER holds `agnews-*.npz` and `cifar10-*.npz` (docs/features.md). All rows of a file are shuffled. The first n are the
records of the store, the next ones are for validation, and the rest are the stream of queries. A stream that is longer
than the data starts again, and a repeated query is charged as a new one. The endless mode is not tuned. Algorithm 3
gets the best of three σ2, and the other methods the best of a small grid, on the validation rows. No budget covers
these searches.

Every point is kept in `--cache` at once, and a run that was stopped continues. Only this script writes
`docs/results/tools.json`, from these points. `--only-write` does only that. Points of methods that were not measured
this time (`--methods`) stay unchanged in that file. `indknn reproduce write-docs` makes the table in docs/tuning.md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from indknn import IndKNNClassifier
from indknn.core.accounting import budget
from indknn.core.noise import SeededNoise
from indknn.core.quantise import quantise
from indknn.errors import PrivacyWarning
from indknn.types import GRID
from indknn_lab.baselines import LinearNoisySGD
from indknn_lab.baselines.knn import SENSITIVITY
from indknn_lab.baselines.pricing import SamplingAccountant, noise_multiplier
from indknn_lab.datasets import TITLES, find_datasets, load_features
from indknn_lab.experiments.data import Data, NearestLabels, write_json
from indknn_lab.experiments.methods.queries import sampled_votes
from indknn_lab.tuning import sigma2_for_store

KEPT = Path(__file__).parents[1] / "docs" / "results" / "tools.json"
DELTA = 1e-5
EPSILONS = (0.25, 0.5, 1.0, 2.0)
SIZES = {"agnews": (10_000, 25_000), "cifar10": (10_000, 40_000)}
QUERIES = (1_000, 10_000, 100_000)
RETRAININGS = (0, 10, 100, 1_000, 10_000)
SEEDS = 2
BATCH = 2000
FACTORS = (0.25, 0.5, 1.0)
VALIDATION, TEST = 1_000, 4_000
RATIOS, KS = (0.05, 0.2, 1.0), (25, 50, 100, 200, 400, 800, 1600)
RATES = (10.0, 40.0, 160.0)


Points: TypeAlias = Iterator[tuple[int, float]]


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
        """The file, shuffled."""
        raw = load_features(path)
        X, y = np.concatenate([raw.X_train, raw.X_test]), np.concatenate([raw.y_train, raw.y_test]).astype(np.int64)
        order = np.random.default_rng(seed).permutation(len(X))
        return cls(name, n, seed, X[order], y[order])

    def stream(self, T: int) -> Any:
        """The rows of T queries."""
        first = self.n + VALIDATION
        return first + np.arange(T) % (len(self.X) - first)

    def store(self) -> tuple[Any, Any]:
        """The records."""
        return self.X[: self.n], self.y[: self.n]

    def valid(self) -> Any:
        """The rows that parameters are chosen by."""
        return np.arange(self.n, self.n + VALIDATION)

    def test(self) -> Any:
        """The rows that stand for a stream of any length, to those whom earlier queries do not change."""
        return self.stream(TEST)


def endless(case: Case, epsilon: float, loads: Sequence[int]) -> Points:
    model = IndKNNClassifier(epsilon, DELTA, random_state=case.seed, free_repeats=False).fit(*case.store())
    parts = np.array_split(case.stream(loads[-1]), ceil(loads[-1] / BATCH))
    right = np.concatenate([model.predict(case.X[part]) == case.y[part] for part in parts])
    for T in loads:
        yield T, float(right[:T].mean())


def algorithm3(case: Case, epsilon: float, loads: Sequence[int]) -> Points:
    """Untuned but for a factor of σ2, which `indknn tune` finds on public data: the best on the validation rows."""

    def ask(T: int, rows: Any, factor: float) -> float:
        sigma2 = sigma2_for_store(budget(epsilon, DELTA), T, case.n, factor)
        model = IndKNNClassifier(
            epsilon,
            DELTA,
            mode="votes",
            reuse="none",
            max_queries=T,
            sigma2=sigma2,
            random_state=case.seed,
            free_repeats=False,
        ).fit(*case.store())
        parts = np.array_split(rows, ceil(T / BATCH))
        return float(np.concatenate([model.predict(case.X[part]) == case.y[part] for part in parts]).mean())

    for T in loads:
        tried = min(T, QUERIES[1])
        rehearsal = case.valid()[np.arange(tried) % VALIDATION]
        factor = max(FACTORS, key=lambda f, T=tried, rows=rehearsal: ask(T, rows, f))
        yield T, ask(T, case.stream(T), factor)


def accountant(steps: int) -> SamplingAccountant:
    """Loss distributions are tighter by some 8%, and take minutes for very many steps."""
    return "pld" if steps <= 2_000 else "rdp"


def noise_for(epsilon: float, p: float, T: int) -> float:
    """The noise multiplier of T votes of samples; exact where all are sampled."""
    if p >= 1.0:
        return sqrt(T / (2.0 * budget(epsilon, DELTA, "gdp")))
    return noise_multiplier(epsilon, DELTA, rate=p, steps=T, accountant=accountant(T))


def private_knn(case: Case, epsilon: float, loads: Sequence[int]) -> Points:
    votes = _votes(case)
    rng = SeededNoise(case.seed)
    truth = case.y[np.concatenate([case.valid(), case.test()])]
    for T in loads:
        found = []
        for (p, _), counts in votes.items():
            z = noise_for(epsilon, p, T)
            noise = rng.draw(ceil(z * SENSITIVITY * GRID), counts.size).reshape(counts.shape)
            right = np.argmax(counts * GRID + noise, axis=1) == truth
            found.append((right[:VALIDATION].mean(), right[VALIDATION:].mean()))
        yield T, float(max(found)[1])


_KEPT: dict[tuple[str, int, int], Any] = {}


def _votes(case: Case) -> dict[tuple[float, int], Any]:
    key = case.name, case.n, case.seed
    if key not in _KEPT:
        _KEPT.clear()
        rows = np.concatenate([case.valid(), case.test()])
        X, y = case.store()
        c = len(np.unique(case.y))
        data = Data(quantise(X), y, quantise(case.X[rows]), case.y[rows], c, X, case.X[rows])
        labels = NearestLabels(data, case.n).labels(np.arange(len(rows)))
        _KEPT[key] = {
            (p, k): sampled_votes(labels, p, k, c, 1, case.seed) for p in RATIOS for k in KS if k <= p * case.n / 4
        }
    return _KEPT[key]


def noisy_sgd(case: Case, epsilon: float, loads: Sequence[int]) -> Points:
    def train(rate: float, retrainings: int) -> tuple[float, float]:
        priced = accountant(ceil(10 * case.n / 256) * (1 + retrainings))
        model = LinearNoisySGD(
            epsilon, DELTA, learning_rate=rate, retrainings=retrainings, random_state=case.seed, accountant=priced
        ).fit(*case.store())
        accuracy = [float((model.predict(case.X[r]) == case.y[r]).mean()) for r in (case.valid(), case.test())]
        return accuracy[0], accuracy[1]

    rates = RATES
    for retrainings in loads:  # more noise asks for smaller steps, never for larger ones
        tried = {rate: train(rate, retrainings) for rate in rates}
        best = max(tried, key=lambda rate, found=tried: found[rate])
        yield retrainings, tried[best][1]
        rates = (best, best / 4.0)


METHODS: dict[str, Callable[[Case, float, Sequence[int]], Points]] = {
    "endless": endless,
    "algorithm3": algorithm3,
    "private_knn": private_knn,
    "noisy_sgd": noisy_sgd,
}


STREAMS = (*QUERIES[:2], 30_000)  # which take long, being answered from the first query to the last
LOADS = {"endless": QUERIES, "algorithm3": STREAMS, "private_knn": QUERIES, "noisy_sgd": RETRAININGS}
LONG = {"algorithm3"}
"""Those whose longest streams take long: they are run once."""


def passes() -> Iterator[tuple[int, str, Sequence[int]]]:
    """Shuffle, method and loads, the quick ones first."""
    short = {method: loads[:-1] if method in LONG else loads for method, loads in LOADS.items()}
    for method, loads in short.items():
        yield 0, method, loads
    for method in sorted(LONG, reverse=True):
        yield 0, method, LOADS[method][-1:]
    for seed in range(1, SEEDS):
        for method, loads in short.items():
            yield seed, method, loads


def measure(folder: Path, cache: Path, methods: Sequence[str]) -> None:
    """Every point that is not in the cache yet."""
    present = find_datasets(folder).present
    for seed, method, loads in passes():
        if method not in methods:
            continue
        for name, n in ((name, n) for name, sizes in SIZES.items() for n in sizes):
            case = Case.load(present[name][0], name, n, seed)
            for epsilon in EPSILONS:
                path = cache / f"{name}-{n}-{seed}-{method}-{epsilon}-{loads[-1]}.json"
                if path.exists():
                    continue
                points = list(METHODS[method](case, epsilon, loads))
                about = {"data": name, "n": n, "method": method, "epsilon": epsilon, "features": case.X.shape[1]}
                write_json(path, {**about, "classes": len(np.unique(case.y)), "points": points})
                print(path.stem, [f"{accuracy:.3f}" for _, accuracy in points], flush=True)


def assemble(cache: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Medians over shuffles, in the order of a table; of a method that was not measured now, what was known before."""
    found: dict[tuple[Any, ...], list[float]] = {}
    shapes: dict[str, dict[str, Any]] = dict(before["data"])
    for path in sorted(cache.glob("*.json")):
        run = json.loads(path.read_text())
        shapes[run["data"]] = {"title": TITLES[run["data"]], "features": run["features"], "classes": run["classes"]}
        for load, accuracy in run["points"]:
            found.setdefault((run["data"], run["method"], run["n"], run["epsilon"], load), []).append(accuracy)
    points = [
        {
            **dict(zip(("data", "method", "n", "epsilon", "load"), key, strict=True)),
            "accuracy": round(median(a), 4),
            "runs": len(a),
        }
        for key, a in sorted(found.items())
    ]
    anew = {(p["data"], p["method"]) for p in points}
    points += [p for p in before["points"] if (p["data"], p["method"]) not in anew]
    points.sort(key=lambda p: [p[key] for key in ("data", "method", "n", "epsilon", "load")])
    return {
        "written by": "benchmarks/advise.py",
        "load": "queries, for NoisySGD retrainings",
        "delta": DELTA,
        "data": shapes,
        "points": points,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only-write", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path("out/advise"))
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)  # seeded on purpose
    if not options.only_write:
        if options.data is None:
            parser.error("--data is needed to measure anything")
        measure(options.data, options.cache, options.methods)
    write_json(options.out, assemble(options.cache, json.loads(KEPT.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()

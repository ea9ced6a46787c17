"""Measures the expected calibration error of `predict_proba` on held-out training records.

    python benchmarks/calibration.py --data ../shared/data

Answers are put into 15 bins of equal width by their largest probability. The error is the mean over bins of |mean
probability - share of right answers|, weighted by the number of queries in a bin. Test sets are not used, so constants
may be chosen with these results.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from indknn import IndKNNClassifier
from indknn.tables import infer

TABLES = {"adult": "income", "letters": "label", "shuttle": "label"}
MODES = {"default": {}, "algorithm 3": {"mode": "votes"}}
PUBLIC, BINS, MOST = 1000, 15, 60_000


def calibration_error(likely, truth):
    """The expected calibration error, how sure answers are on average, and how often they are right."""
    sure, right = likely.max(axis=1), likely.argmax(axis=1) == truth
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    error = sum(abs(sure[bins == b].sum() - right[bins == b].sum()) for b in range(BINS)) / len(sure)
    return error, sure.mean(), right.mean()


def features(path, seed):
    """Records, queries held out of them, and public rows: of a file of features."""
    with np.load(path) as npz:
        X, y = npz["X_train"].astype(np.float64), npz["y_train"]
        X *= npz["scale_train"][:, None] if "scale_train" in npz else 1.0
    order = np.random.default_rng(seed).permutation(len(y))[:MOST]
    return X[order], y[order], {}


def table(path, seed):
    """The same of a table, whose first rows are public and make the schema."""
    frame, label = pd.read_csv(path), TABLES[path.name.split(".")[0]]
    frame = frame.iloc[np.random.default_rng(seed).permutation(len(frame))[:MOST]]
    public, rest = frame[:PUBLIC], frame[PUBLIC:]
    schema = infer(public, label=label).schema
    y = rest[label].to_numpy()
    rows = schema.encode(rest.drop(columns=label))
    return rows, y, {"public": schema.encode(public.drop(columns=label)), "classes": sorted(frame[label].unique())}


def measure(path, seed, queries, epsilon, mode):
    """The error on records that were held out of the training part."""
    X, y, options = (features if path.suffix == ".npz" else table)(path, seed)
    planned = {} if mode == "default" else {"max_queries": queries}
    model = IndKNNClassifier(epsilon, **MODES[mode], **planned, **options)
    model.fit(X[queries:], y[queries:])
    likely = model.predict_proba(X[:queries])
    return calibration_error(likely, np.searchsorted(model.classes_, y[:queries]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with npz files, and tables in tabular/")
    parser.add_argument("--sets", nargs="+", help="only these files")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    paths = [*sorted(chosen.data.glob("*.npz")), *(chosen.data / f"tabular/{name}.csv.gz" for name in TABLES)]
    print(f"{'set':<18}{'epsilon':>8}  {'mode':<12}{'error':>8}{'sure':>8}{'right':>8}")
    for path in paths:
        name = path.name.split(".")[0]
        if chosen.sets and name not in chosen.sets:
            continue
        for epsilon in chosen.epsilon:
            for mode in chosen.modes:
                runs = [measure(path, seed, chosen.queries, epsilon, mode) for seed in range(chosen.seeds)]
                figures = "".join(f"{figure:8.3f}" for figure in np.median(runs, axis=0))
                print(f"{name:<18}{epsilon:8g}  {mode:<12}{figures}", flush=True)


if __name__ == "__main__":
    main()

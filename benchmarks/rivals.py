"""Compares the estimator's default with other people's tools, all on the same rows, and writes what it found.

    python benchmarks/rivals.py --data ../shared/data            docs/results/rivals.json and the table in comparison.md
    python benchmarks/rivals.py --only letters digits            some of the sets
    python benchmarks/rivals.py --only-write                     only the table, from the results that are there

Every set has public rows (with labels), queries, and private rows. All tools have the same private rows and the same
promise. Public rows make the schema of ours and the usual pipeline of the others. Needs `pip install -e '.[peers]'`.
"""

import argparse
import json
import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score

from indknn import IndKNNClassifier
from indknn.tables import infer
from indknn_lab.baselines import peers

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "docs" / "results" / "rivals.json", ROOT / "docs" / "comparison.md"
BEGIN, END = "<!-- rivals: written by benchmarks/rivals.py -->", "<!-- end of rivals -->"
DELTA, EPSILONS, PUBLIC, QUERIES = 1e-5, (0.25, 1.0, 8.0), 1000, 5000
OURS, PUBLIC_ONLY = "indknn", "public rows only"
TOOLS = (OURS, "Opacus", "DP-EBM", PUBLIC_ONLY, "logistic, no privacy", "trees, no privacy")


@dataclass
class Rows:
    """Public rows, queries and private rows, each with labels as numbers. `table` says whether they are a raw table."""

    public: tuple[Any, Any]
    queries: tuple[Any, Any]
    private: tuple[Any, Any]
    n_classes: int
    table: bool

    @property
    def parts(self):
        """All three."""
        return self.public, self.queries, self.private


def split(X, y, seed, *, table):
    """Rows split by a seed. Small sets have fewer public rows and queries."""
    n, order = len(y), np.random.default_rng(seed).permutation(len(y))
    public = min(PUBLIC, n // 6)
    at = public, public + min(QUERIES, n // 5)
    parts = [(X.iloc[rows] if table else X[rows], y[rows]) for rows in np.split(order, at)]
    return Rows(*parts, int(y.max()) + 1, table)


def of_csv(name, label):
    def load(folder, seed):
        read = pd.read_csv(folder / "tabular" / f"{name}.csv.gz")
        return split(read.drop(columns=label), pd.factorize(read[label], sort=True)[0], seed, table=True)

    return load


def of_npz(name):
    def load(folder, seed):
        with np.load(folder / f"{name}.npz") as file:
            X, y = (file["X_train"] * file["scale_train"][:, None]), file["y_train"].astype(np.int64)
        return split(X, y, seed, table=False)

    return load


def of_sklearn(load_it):
    def load(_, seed):
        X, y = load_it(return_X_y=True, as_frame=True)
        return split(X, y.to_numpy(), seed, table=True)

    return load


def rare(folder, seed):
    """Adult with 2% of positives."""
    read = pd.read_csv(folder / "tabular" / "adult.csv.gz")
    y = pd.factorize(read["income"], sort=True)[0]
    positive, rng = np.flatnonzero(y == 1), np.random.default_rng(12)
    left = np.concatenate([np.flatnonzero(y == 0), rng.choice(positive, int((y == 0).sum() / 49), replace=False)])
    return split(read.drop(columns="income").iloc[left], y[left], seed, table=True)


SETS = {
    "adult": ("Adult", of_csv("adult", "income")),
    "rare": ("Adult, 2% positives (AUC)", rare),
    "letters": ("Letters", of_csv("letters", "label")),
    "shuttle": ("Shuttle", of_csv("shuttle", "label")),
    "digits": ("digits", of_sklearn(load_digits)),
    "cancer": ("breast cancer", of_sklearn(load_breast_cancer)),
    "agnews": ("AG News", of_npz("agnews-minilm")),
    "lite3": ("CIFAR-10, Lite3", of_npz("cifar10-lite3")),
}


def ours(rows, epsilon, seed):
    """Our default, with labelled public rows, as its users have them."""
    (public, public_y), (queries, _), (private, y) = rows.parts
    terms = {"random_state": seed, "classes": list(range(rows.n_classes)), "public": (public, public_y)}
    if rows.table:
        terms["schema"] = infer(public.assign(label_=public_y), label="label_").schema
    model = IndKNNClassifier(epsilon, DELTA, **terms)
    return model.fit(private, y).predict_proba(queries)


def measure(name, folder, seeds):
    """The scores of every tool by epsilon: accuracy, or the area under the curve for rare classes."""
    load, found = SETS[name][1], {}
    for seed in range(seeds):
        rows = load(folder, seed)
        (public, public_y), (queries, truth), (private, y) = rows.parts

        def note(tool, epsilon, probabilities, truth=truth, seed=seed):
            score = roc_auc_score(truth, probabilities[:, 1]) if name == "rare" else (probabilities.argmax(1) == truth)
            found.setdefault(tool, {}).setdefault(f"{epsilon:g}", []).append(float(np.mean(score)))
            print(f"  {name}, seed {seed}, ε = {epsilon:g}, {tool}: {np.mean(score):.4f}", file=sys.stderr, flush=True)

        plain = peers.plain_pipeline(public) if rows.table else None
        Z, known, asked = (plain.transform(part) if plain else part for part in (private, public, queries))
        note(PUBLIC_ONLY, 0, peers.logistic(known, public_y, asked, rows.n_classes))
        note(TOOLS[4], 0, peers.logistic(Z, y, asked, rows.n_classes))
        if rows.table:
            note(TOOLS[5], 0, peers.trees(Z, y, asked, rows.n_classes))
        for epsilon in EPSILONS:
            promise = epsilon, DELTA
            note(OURS, epsilon, ours(rows, epsilon, seed))
            rate = peers.opacus_rate(Z, y, rows.n_classes, promise, seed)
            note("Opacus", epsilon, peers.opacus_linear(Z, y, asked, rows.n_classes, promise, rate, seed))
            if rows.table and rows.n_classes == 2:
                full = (peers.without_gaps(part, public) for part in (private, queries))
                note("DP-EBM", epsilon, peers.dp_ebm(next(full), y, next(full), promise, seed))
    return {tool: {e: statistics.median(scores) for e, scores in by.items()} for tool, by in found.items()}


def table(kept):
    """The rows of the page: medians, three epsilons a cell."""
    private = TOOLS[:3]
    yield "| ε = " + " / ".join(f"{e:g}" for e in EPSILONS) + " | " + " | ".join(TOOLS) + " |"
    yield "|---" * (len(TOOLS) + 1) + "|"
    for name, (title, _) in SETS.items():
        if name not in kept["sets"]:
            continue
        found = kept["sets"][name]
        cells = [title]
        for tool in TOOLS:
            epsilons = [f"{e:g}" for e in EPSILONS] if tool in private else ["0"]
            cells.append(" ".join(f"{found[tool][e]:.3f}"[1:] for e in epsilons) if tool in found else "–")
        yield "| " + " | ".join(cells) + " |"


def write(kept):
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    tools = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    seeds = "One seed" if kept["seeds"] == 1 else f"Medians of {kept['seeds']} seeds"
    about = f"{seeds}, δ = {DELTA:g}; {tools}."
    lines = [BEGIN, "", *table(kept), "", about, "", END]
    PAGE.write_text(before + "\n".join(lines) + rest.partition(END)[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only-write", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"written by": "benchmarks/rivals.py", "sets": {}}
    if not asked.only_write:
        kept |= {"seeds": asked.seeds, "delta": DELTA, "versions": peers.versions()}
        for name in asked.only:
            kept["sets"][name] = measure(name, asked.data, asked.seeds)
            write(kept)
    write(kept)


if __name__ == "__main__":
    main()

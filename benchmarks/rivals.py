"""Compares the estimator's default with other people's tools, all on the same rows, and writes what it found.

    python benchmarks/rivals.py --data ../shared/data            rivals.json and the tables in the documents
    python benchmarks/rivals.py --only letters digits            some of the sets
    python benchmarks/rivals.py --tools indknn NoisySGD          some of the tools: the rest stays as it was
    python benchmarks/rivals.py --only-write                     only the tables, from the results that are there

Every set has public rows (with labels), queries, and private rows. All tools have the same private rows and the same
promise. Public rows make the schema of ours and the usual pipeline of the others. A seed gives the same rows and, with
the same versions, the same scores in every run. Needs `pip install -e '.[peers]'`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score

from indknn import IndKNNClassifier
from indknn.tables import infer
from indknn_lab.baselines import peers
from indknn_lab.plots.documents import FEWER, write_documents

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "docs" / "results" / "rivals.json", ROOT / "docs" / "comparison.md"
BEGIN, END = "<!-- rivals: written by benchmarks/rivals.py -->", "<!-- end of rivals -->"
DELTA, EPSILONS, PUBLIC, QUERIES = 1e-5, (0.25, 1.0, 8.0), 1000, 5000
OURS, UNLABELLED, PUBLIC_ONLY = "indknn", "indknn, public rows without labels", "public rows only"
LINEAR, TREES = "logistic, no privacy", "trees, no privacy"
TUNED = {"NoisySGD": peers.noisy_sgd, "Opacus": peers.opacus_linear}
TOOLS = (OURS, UNLABELLED, *TUNED, "DP-EBM", PUBLIC_ONLY, LINEAR, TREES)


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


def many_classes(each):
    """Made-up vectors of 150 classes, each a cluster, with about so many private rows per class."""

    def load(_, seed):
        rng = np.random.default_rng(150)
        n = {70: 14_400, 200: 36_000}[each]
        y = rng.integers(150, size=n)
        return split(rng.standard_normal((150, 32))[y] + rng.standard_normal((n, 32)), y, seed, table=False)

    return load


SETS = {
    "adult": ("Adult", of_csv("adult", "income")),
    "rare": ("Adult, 2% positives (AUC)", rare),
    "letters": ("Letters", of_csv("letters", "label")),
    "shuttle": ("Shuttle", of_csv("shuttle", "label")),
    "digits": ("digits", of_sklearn(load_digits)),
    "cancer": ("breast cancer", of_sklearn(load_breast_cancer)),
    "agnews": ("AG News", of_npz("agnews-minilm")),
    "lite3": ("CIFAR-10, Lite3", of_npz("cifar10-lite3")),
    "many70": ("150 classes, 70 each", many_classes(70)),
    "many200": ("150 classes, 200 each", many_classes(200)),
}


def schema_of(rows):
    public, labels = rows.public
    return infer(public.assign(label_=labels), label="label_").schema


def ours(rows, epsilon, seed, *, labelled):
    """Our default. Its public rows have labels, or a schema is all that comes from them."""
    (public, public_y), (queries, _), (private, y) = rows.parts
    terms = {"random_state": seed, "classes": list(range(rows.n_classes))}
    terms["public"] = (public, public_y) if labelled else public
    if rows.table:
        terms["schema"] = schema_of(rows)
    model = IndKNNClassifier(epsilon, DELTA, **terms)
    return model.fit(private, y).predict_proba(queries)


def contestants(rows, seed, chosen):
    """Every tool that can take these rows: its epsilons, and what gives P(y | query) of every query for an epsilon.

    `chosen` has the view of a table and the rate of each tool that is tuned, by the first seed.
    """
    (public, public_y), (queries, _), (private, y) = rows.parts
    n_classes = rows.n_classes
    plain = peers.plain_pipeline(public) if rows.table else None
    Z, known, asked = (plain.transform(part) if plain else part for part in (private, public, queries))
    views = [(Z, asked)]
    if rows.table:
        encode = schema_of(rows).encode
        views.append((encode(private), encode(queries)))

    def tuned(tool, epsilon):
        tasks = [peers.Task(X, y, asked_so, n_classes, (epsilon, DELTA)) for X, asked_so in views]
        choices = chosen.setdefault(tool, {})
        if f"{epsilon:g}" not in choices:
            choices[f"{epsilon:g}"] = peers.choice(TUNED[tool], tasks, seed)
        view, rate = choices[f"{epsilon:g}"]
        return TUNED[tool](tasks[view], rate, seed)

    def dp_ebm(epsilon):
        full = (peers.without_gaps(part, public) for part in (private, queries))
        return peers.dp_ebm(next(full), y, next(full), (epsilon, DELTA), seed)

    found = {
        OURS: (EPSILONS, lambda epsilon: ours(rows, epsilon, seed, labelled=True)),
        UNLABELLED: (EPSILONS, lambda epsilon: ours(rows, epsilon, seed, labelled=False)),
        PUBLIC_ONLY: ((0,), lambda _: peers.logistic(known, public_y, asked, n_classes)),
        LINEAR: ((0,), lambda _: peers.logistic(Z, y, asked, n_classes)),
        **{tool: (EPSILONS, partial(tuned, tool)) for tool in TUNED},
    }
    if rows.table:
        found[TREES] = (0,), lambda _: peers.trees(Z, y, asked, n_classes)
    if rows.table and n_classes == 2:
        found["DP-EBM"] = EPSILONS, dp_ebm
    return found


@cache
def commit():
    """The version of this code that is measured."""
    asked = "git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def run(kept, name, seed, folder, tools):
    """Measure tools on a set with one seed. Kept are scores by seed, and medians: accuracy, or the area under the curve
    for rare classes."""
    rows = SETS[name][1](folder, seed)
    truth, scores = rows.queries[1], kept["scores"].setdefault(name, {})
    for tool, (epsilons, answers) in contestants(rows, seed, kept["choices"].setdefault(name, {})).items():
        for epsilon in epsilons if tool in tools else ():
            found = answers(epsilon)
            score = float(roc_auc_score(truth, found[:, 1]) if name == "rare" else (found.argmax(1) == truth).mean())
            by_seed = scores.setdefault(tool, {}).setdefault(f"{epsilon:g}", {})
            by_seed[str(seed)] = score
            kept["sets"].setdefault(name, {}).setdefault(tool, {})[f"{epsilon:g}"] = statistics.median(by_seed.values())
            kept["seeds"].setdefault(name, {})[tool] = len(by_seed)
            kept["commits"].setdefault(name, {}).setdefault(tool, {})[str(seed)] = commit()
            print(f"  {name}, seed {seed}, ε = {epsilon:g}, {tool}: {score:.4f}", file=sys.stderr, flush=True)


def table(kept):
    """The rows of the page: medians, three epsilons a cell."""
    private = TOOLS[:5]
    yield "| ε = " + " / ".join(f"{e:g}" for e in EPSILONS) + " | " + " | ".join(TOOLS) + " |"
    yield "|---" * (len(TOOLS) + 1) + "|"
    for name, (title, _) in SETS.items():
        if name not in kept["sets"]:
            continue
        found = kept["sets"][name]
        cells = [title]
        for tool in TOOLS:
            epsilons = [f"{e:g}" for e in EPSILONS] if tool in private else ["0"]
            fewer = found.get(tool) and kept["seeds"][name][tool] < kept["seeds"][name][OURS]
            cell = " ".join(f"{found[tool][e]:.3f}"[1:] for e in epsilons) if tool in found else "–"
            cells.append(cell + FEWER * bool(fewer))
        yield "| " + " | ".join(cells) + " |"


def write(kept):
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    tools = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    many = sorted({kept["seeds"][name][OURS] for name in kept["sets"]})
    seeds = "One seed" if many == [1] else f"Medians of {many[0]} to {many[-1]} seeds"
    about = f"{seeds} ({FEWER} fewer), δ = {DELTA:g}; {tools}."
    lines = [BEGIN, "", *table(kept), "", about, "", END]
    PAGE.write_text(before + "\n".join(lines) + rest.partition(END)[2])
    write_documents(ROOT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--only-write", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = {"written by": "benchmarks/rivals.py", "sets": {}, "seeds": {}, "choices": {}, "scores": {}, "commits": {}}
    if KEPT.exists():
        kept |= json.loads(KEPT.read_text())
    if not asked.only_write:
        kept["delta"] = DELTA
        if {"Opacus", "DP-EBM"}.intersection(asked.tools):
            kept["versions"] = peers.versions()
        for seed in range(asked.seeds):
            for name in asked.only:
                run(kept, name, seed, asked.data, asked.tools)
                write(kept)
    write(kept)


if __name__ == "__main__":
    main()

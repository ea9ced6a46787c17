"""Compares the regressor with rivals that predict numbers, all on the same rows, and writes what it found.

    python benchmarks/regression.py --data ../shared/data       regression.json, and the table in a guide
    python benchmarks/regression.py --only diabetes hours       some of the targets
    python benchmarks/regression.py --rows 10000                at most so many private rows
    python benchmarks/regression.py --change                    people who come and go too

Every set has public rows, queries and private rows. The queries of a set are the same with every seed, so that rows on
which constants were chosen are never asked about. All tools have the same private rows and the same promise. R² is
that of the queries. AdaSSP and NoisySGD choose their view of the rows and a strength or a rate on held-out rows, and
nobody pays for that, which favours them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, make_friedman1

from indknn import IndKNNRegressor
from indknn.core import accounting
from indknn.tables import infer
from indknn_lab.baselines import peers, regression

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "docs" / "results" / "regression.json", ROOT / "docs" / "guides" / "numbers.md"
BEGIN, END = "<!-- regression: written by benchmarks/regression.py -->", "<!-- end of regression -->"
DELTA, EPSILONS, PUBLIC, QUERIES = 1e-5, (0.25, 1.0, 8.0), 1000, 5000
OURS, LABELLED, VOTES = "indknn", "indknn, labelled public rows", "indknn, votes"
RIVALS = {"AdaSSP": regression.ada_ssp, "NoisySGD": regression.noisy_descent}
MEAN, EBM, RIDGE, NEAR, TREES = "private mean", "DP-EBM", "ridge, no privacy", "kNN, no privacy", "trees, no privacy"
PRIVATE = (OURS, LABELLED, VOTES, *RIVALS, EBM, MEAN)
TOOLS = (*PRIVATE, RIDGE, NEAR, TREES)
STAGES = 10


def of_csv(name, target, low, high):
    def load(folder):
        read = pd.read_csv(folder / "tabular" / f"{name}.csv.gz")
        return read.drop(columns=target), read[target].to_numpy(np.float64), low, high

    return load


def diabetes(_):
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    return X, y.to_numpy(), 0.0, 400.0


def friedman(_):
    X, y = make_friedman1(20_000, noise=1.0, random_state=1)
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]), y, 0.0, 30.0


SETS = {
    "diabetes": ("diabetes", diabetes),
    "hours": ("Adult, hours per week", of_csv("adult", "hours_per_week", 0.0, 100.0)),
    "age": ("Adult, age", of_csv("adult", "age", 0.0, 120.0)),
    "ybar": ("Letters, mean height", of_csv("letters", "y.bar", 0.0, 15.0)),
    "friedman": ("Friedman's function", friedman),
}


class Rows:
    """Public rows, queries and private rows of one split, as tables, as vectors of the schema, and as plain numbers."""

    def __init__(self, X, y, low, high, seed, most=None):
        queries, others = np.split(np.random.default_rng(0).permutation(len(y)), [min(QUERIES, len(y) // 5)])
        public, private = np.split(np.random.default_rng(seed).permutation(others), [min(PUBLIC, len(y) // 6)])
        parts = public, queries, private[:most]
        self.bounds, self.middle, self.half = (low, high), (low + high) / 2, (high - low) / 2
        self.tables, self.y = [X.iloc[rows] for rows in parts], [np.clip(y[rows], low, high) for rows in parts]
        self.scaled = [(part - self.middle) / self.half for part in self.y]
        self.schema = schema = infer(self.tables[0].assign(target_=self.y[0]), label="target_").schema
        plain = peers.plain_pipeline(self.tables[0])
        self.vectors = [schema.encode(table) for table in self.tables]
        usual = [np.asarray(plain.transform(table)) for table in self.tables]
        self.views = []
        for view in (self.vectors, usual):
            radius = float(np.quantile(np.linalg.norm(view[0], axis=1), 0.9)) or 1.0
            self.views.append([regression.within_unit(part, radius) for part in view])

    def r2(self, predicted):
        """R² of predictions in [-1, 1]."""
        truth = self.scaled[1]
        return 1.0 - float(((predicted - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())

    def ours(self, epsilon, seed, **terms):
        """Our answers about the queries, in [-1, 1]. It is given tables and their schema, as people do."""
        model = IndKNNRegressor(epsilon, DELTA, bounds=self.bounds, random_state=seed, schema=self.schema, **terms)
        model.fit(self.tables[2].assign(target_=self.y[2]))
        return (model.predict(self.tables[1]) - self.middle) / self.half


def measure(name, folder, seeds, most):
    """The median R² of every tool, by epsilon."""
    loaded, found, chosen = SETS[name][1](folder), {}, {}
    for seed in range(seeds):
        rows = Rows(*loaded, seed, most)

        def note(tool, epsilon, r2, seed=seed):
            found.setdefault(tool, {}).setdefault(f"{epsilon:g}", []).append(r2)
            print(f"  {name}, seed {seed}, ε = {epsilon:g}, {tool}: {r2:.4f}", file=sys.stderr, flush=True)

        y, (_, queries, private) = rows.scaled[2], rows.views[1]
        for tool, rival in ((RIDGE, regression.ridge), (NEAR, regression.neighbours), (TREES, regression.trees)):
            note(tool, 0, rows.r2(rival(private, y, queries)))
        for epsilon in EPSILONS:
            promise, public = (epsilon, DELTA), rows.tables[0]
            note(OURS, epsilon, rows.r2(rows.ours(epsilon, seed, public=public)))
            note(LABELLED, epsilon, rows.r2(rows.ours(epsilon, seed, public=(public, rows.y[0]))))
            note(VOTES, epsilon, rows.r2(rows.ours(epsilon, seed, mode="votes", max_queries=len(rows.y[1]))))
            note(MEAN, epsilon, rows.r2(regression.private_mean(private, y, queries, promise, seed)))
            for tool, rival in RIVALS.items():
                if (tool, epsilon) not in chosen:  # with the first seed
                    views = [view[2] for view in rows.views]
                    chosen[tool, epsilon] = regression.best_choice(rival, views, y, promise, seed)
                view, value = chosen[tool, epsilon]
                _, asked, known = rows.views[view]
                note(tool, epsilon, rows.r2(rival(known, y, asked, promise, seed, value)))
            if find_spec("interpret"):
                full = [peers.without_gaps(rows.tables[part], rows.tables[0]) for part in (2, 1)]
                note(EBM, epsilon, rows.r2(regression.dp_ebm(full[0], y, full[1], promise, seed)))
    return {tool: {e: statistics.median(scores) for e, scores in by.items()} for tool, by in found.items()}


def changing(name, folder, seeds, most):
    """R² while a tenth of the people is replaced by others between two looks, ε = 1. Rivals train again each time."""
    loaded, found = SETS[name][1](folder), {}
    for seed in range(seeds):
        rows = Rows(*loaded, seed, most)
        y, n = rows.scaled[2], len(rows.y[2])
        first, portion = n // 2, n // 2 // STAGES
        owners, model = (
            np.arange(n),
            IndKNNRegressor(1.0, DELTA, bounds=rows.bounds, random_state=seed, public=rows.vectors[0]),
        )
        model.fit(rows.vectors[2][:first], rows.y[2][:first], owners=owners[:first])
        # A person is there for up to all stages, so each training may take one part of their budget.
        once = accounting.epsilon(accounting.budget(1.0, DELTA) / (STAGES + 1), DELTA)
        choices = {
            tool: regression.best_choice(
                rival, [view[2][:first] for view in rows.views], y[:first], (once, DELTA), seed
            )
            for tool, rival in RIVALS.items()
        }
        scores = {}
        for stage in range(STAGES + 1):
            start, end = stage * portion, first + stage * portion
            if stage:
                new = slice(end - portion, end)
                model.forget(owners[start - portion : start])
                model.partial_fit(rows.vectors[2][new], rows.y[2][new], owners=owners[new])
            answers = (model.predict(rows.vectors[1]) - rows.middle) / rows.half
            scores.setdefault(OURS, []).append(rows.r2(answers))
            for tool, rival in RIVALS.items():
                view, value = choices[tool]
                _, asked, known = rows.views[view]
                predicted = rival(known[start:end], y[start:end], asked, (once, DELTA), seed * 100 + stage, value)
                scores.setdefault(tool, []).append(rows.r2(predicted))
        for tool, by_stage in scores.items():
            found.setdefault(tool, []).append(float(np.mean(by_stage)))
            print(f"  {name}, changing, seed {seed}, {tool}: {np.mean(by_stage):.4f}", file=sys.stderr, flush=True)
    return {tool: statistics.median(means) for tool, means in found.items()}


def lines(kept):
    """The table of the page."""
    tools = [tool for tool in TOOLS if any(tool in found for found in kept["sets"].values())]
    yield "| R² at ε = " + " / ".join(f"{e:g}" for e in EPSILONS) + " | " + " | ".join(tools) + " |"
    yield "|---" * (len(tools) + 1) + "|"
    for name, (title, _) in SETS.items():
        if name in kept["sets"]:
            found = kept["sets"][name]
            shown = [[found[tool][e] for e in found[tool]] if tool in found else [] for tool in tools]
            people = f"{kept['runs'][name]['rows']:,}"
            yield (
                f"| {title}, n = {people} | " + " | ".join(" ".join(map(_short, cell)) or "–" for cell in shown) + " |"
            )
    if kept.get("changing"):
        tools = [OURS, *RIVALS]
        yield ""
        yield "| R² at ε = 1 while people come and go | " + " | ".join(tools) + " |"
        yield "|---" * (len(tools) + 1) + "|"
        for name, found in kept["changing"].items():
            yield f"| {SETS[name][0]} | " + " | ".join(_short(found[tool]) for tool in tools) + " |"


def _short(r2):
    return f"{max(r2, -9.99):.3f}".replace("0.", ".", 1)


def commit():
    """The commit of this code."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    described = subprocess.run(command, check=True, capture_output=True, text=True)
    return described.stdout.strip()


def write(kept):
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    before, found, rest = PAGE.read_text().partition(BEGIN)
    if not found:
        sys.exit(f"{PAGE.name} must have the line {BEGIN}")
    runs = kept["runs"].values()
    seeds, commits = (", ".join(sorted({str(run[what]) for run in runs})) for what in ("seeds", "commit"))
    about = f"Medians of {seeds} seeds, δ = {DELTA:g}, made with commit {commits}."
    PAGE.write_text(before + "\n".join([BEGIN, "", *lines(kept), "", about, "", END]) + rest.partition(END)[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="at most so many private rows")
    parser.add_argument("--change", action="store_true")
    parser.add_argument("--only-write", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = {"written by": "benchmarks/regression.py", "runs": {}, "sets": {}, "changing": {}}
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else kept
    about = {"seeds": asked.seeds, "commit": commit(), "date": time.strftime("%Y-%m-%d")}  # before any file changes
    for name in () if asked.only_write else asked.only:
        kept["sets"][name] = measure(name, asked.data, asked.seeds, asked.rows)
        if asked.change:
            kept["changing"][name] = changing(name, asked.data, asked.seeds, asked.rows)
        private = len(Rows(*SETS[name][1](asked.data), 0, asked.rows).y[2])
        kept["runs"][name] = {**about, "rows": private}
        write(kept)
    write(kept)


if __name__ == "__main__":
    main()

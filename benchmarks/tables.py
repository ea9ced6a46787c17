"""Measures accuracy on ordinary tables with a schema and the estimator's defaults, and how fast rows are encoded.

    python benchmarks/tables.py --data ../shared/data/tabular            answers of the estimator at epsilon = 1
    python benchmarks/tables.py --data ../shared/data/tabular --paid     the same, with a schema that people paid for
    python benchmarks/tables.py --data ../shared/data/tabular --plain    without privacy: schema against usual pipeline

1,000 rows are public and make the schema. Queries are public too. All other rows are private. `--plain` does not use
the queries. It holds out rows of the private part, so its results may be used to choose how rows are encoded.
"""

import argparse
import statistics
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler

from indknn import IndKNNClassifier
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.table_counts import pay_for_counts
from indknn.tables import TableEncoder, infer
from indknn.tables.counts import schema_from
from indknn.types import GRID

TABLES = {"adult": "income", "letters": "label", "shuttle": "label"}
PUBLIC, BLOCK, HELD_OUT, TRAINED = 1000, 2000, 3000, 20_000


def split(table, seed, most):
    order = np.random.default_rng(seed).permutation(len(table))
    queries = PUBLIC + min(most, len(table) // 5 if len(table) < 40_000 else most)
    return (table.iloc[rows] for rows in (order[:PUBLIC], order[PUBLIC:queries], order[queries:]))


def answers(table, label, seed, most, epsilon):
    """The accuracy of every block of queries, in order."""
    public, queries, private = split(table, seed, most)
    schema = infer(public, label=label).schema
    model = IndKNNClassifier(
        epsilon,
        schema=schema,
        classes=sorted(table[label].unique()),  # of the domain, not of the sample: Shuttle has classes of ten rows
        public=public.drop(columns=label),
    )
    model.fit(private)
    right = model.predict(queries.drop(columns=label)) == queries[label].to_numpy()
    return [float(right[low : low + BLOCK].mean()) for low in range(0, len(right), BLOCK)]


def paid_answers(table, label, seed, most, epsilon):
    """The same without public rows: the private ones pay for the schema."""
    _, queries, private = split(table, seed, most)
    columns, classes = private.drop(columns=label), sorted(table[label].unique().tolist())
    owners = [str(i) for i in range(len(private))]
    with TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "s", Settings.of(1, classes, epsilon=epsilon), draft=True)
        with store:
            counts = pay_for_counts(store, {name: columns[name].tolist() for name in columns}, owners)
            schema = schema_from(counts.names, counts.cells / GRID, counts.scale / GRID).schema
            store.adopt(schema)
            store.add(columns, private[label].to_numpy(), owners)
            found = []
            for low in range(0, len(queries), BLOCK):
                block = queries[low : low + BLOCK]
                right = store.predict(block.drop(columns=label)) == block[label].to_numpy()
                found.append(float(right.mean()))
    return found


def plain(table, label, seed):
    """Logistic regression and 15 nearest neighbours: by the usual pipeline, then by the schema."""
    public, _, private = split(table, seed, 16_000)
    held_out, trained = private[:HELD_OUT], private[HELD_OUT : HELD_OUT + TRAINED]
    numbers = make_column_selector(dtype_include="number")
    usual = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
    )
    ours = make_pipeline(TableEncoder(infer(public, label=label).schema), Normalizer())
    found = []
    for encoder, C in ((usual, 1.0), (ours, 1000.0)):  # unit vectors want larger weights
        for classifier in (LogisticRegression(C=C, max_iter=300, tol=1e-3), KNeighborsClassifier(15)):
            model = make_pipeline(encoder, classifier).fit(trained.drop(columns=label), trained[label])
            found.append(model.score(held_out.drop(columns=label), held_out[label]))
    return found


def rows_per_second(table, label):
    schema = infer(table[:PUBLIC], label=label).schema
    rows = pd.concat([table.drop(columns=label)] * 4, ignore_index=True)
    best = np.inf
    for _ in range(3):
        start = time.perf_counter()
        schema.encode(rows)
        best = min(best, time.perf_counter() - start)
    return len(rows) / best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with adult.csv.gz, letters.csv.gz, shuttle.csv.gz"
    )
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=16_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--paid", action="store_true", help="no public rows: the schema is paid for")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in chosen.tables:
        table, label = pd.read_csv(chosen.data / f"{name}.csv.gz"), TABLES[name]
        print(f"{name}: {rows_per_second(table, label):,.0f} rows encoded per second")
        if chosen.plain:
            found = np.median([plain(table, label, seed) for seed in range(chosen.seeds)], axis=0)
            print("  pipeline: regression {:.4f}, 15-nn {:.4f}; schema: regression {:.4f}, 15-nn {:.4f}".format(*found))
            continue
        answer = paid_answers if chosen.paid else answers
        runs = [answer(table, label, seed, chosen.queries, chosen.epsilon) for seed in range(chosen.seeds)]
        means = [statistics.fmean(run) for run in runs]
        drop = max(run[0] - min(run) for run in runs)
        print(f"  median {statistics.median(means):.4f}, from {min(means):.4f} to {max(means):.4f}")
        print(f"  the worst block of {BLOCK:,} is {drop:.4f} below the first")


if __name__ == "__main__":
    main()

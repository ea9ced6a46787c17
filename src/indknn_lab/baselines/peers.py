"""Other people's tools on the same rows, called as their users call them. They need `pip install 'indknn[peers]'`.

- `opacus_linear`: one linear layer, trained by Opacus with full batches. Its learning rate and the way from a table to
  numbers (the usual one or ours) are chosen on held-out rows, and nobody pays for that, which favours it.
- `noisy_sgd`: `LinearNoisySGD` of this lab, with the same choice for free.
- `dp_ebm`: the differentially private boosting machine of InterpretML, with its defaults. It has two classes.
- `logistic` and `trees`: without privacy. `logistic` on the public rows alone is what anybody has without private data.

Each returns P(y | row) of the queries. A table is given as numbers by `plain_pipeline`, which is fitted on public rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from indknn.errors import needs
from indknn.types import FloatArray, IntArray
from indknn_lab.baselines.noisy_sgd import LinearNoisySGD

STEPS, CLIP = 60, 1.0
_MOMENTUM, _PORTION, _HELD_OUT = 0.9, 2048, 0.1


@dataclass(frozen=True)
class Task:
    """Records with labels, queries about which a linear model is asked, and (ε, δ)."""

    X: FloatArray
    y: IntArray
    queries: FloatArray
    n_classes: int
    promise: tuple[float, float]


Linear: TypeAlias = Callable[[Task, float, int], FloatArray]
"""From a task, a learning rate and a seed to P(y | query)."""


def versions() -> dict[str, str]:
    """The tools that are compared, and their versions."""
    return {name: version(name) for name in ("opacus", "torch", "interpret-core", "scikit-learn")}


def plain_pipeline(public: Any) -> Pipeline:
    """The usual way from a table to numbers: medians for gaps, standard scores, a column for every category."""
    numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    others = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
        sparse_threshold=0.0,
    )
    return make_pipeline(others).fit(public)


def choice(tool: Linear, views: Sequence[Task], seed: int) -> tuple[int, float]:
    """Which of several views of the same rows, and which learning rate, are best for the tool on held-out rows."""
    n = len(views[0].y)
    held, kept = np.split(np.random.default_rng(seed).permutation(n), [int(n * _HELD_OUT)])

    def right(chosen: tuple[int, float]) -> float:
        task, rate = views[chosen[0]], chosen[1]
        found = tool(replace(task, X=task.X[kept], y=task.y[kept], queries=task.X[held]), rate, seed)
        return float((found.argmax(axis=1) == task.y[held]).mean())

    return max(product(range(len(views)), RATES[tool]), key=right)


def opacus_linear(task: Task, rate: float, seed: int) -> FloatArray:
    """A linear model by Opacus. Rows are scaled to length 1, as its users do where a clip of 1 should fit."""
    X, queries = _unit(task.X), _unit(task.queries)
    modules = "torch", "opacus", "opacus.utils.batch_memory_manager"
    torch, opacus, memory = (needs(module, "peers") for module in modules)
    torch.manual_seed(seed)
    layer = torch.nn.Linear(X.shape[1], task.n_classes)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    rows = torch.utils.data.TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(task.y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer, optimizer, loader = opacus.PrivacyEngine().make_private_with_epsilon(
            module=layer,
            optimizer=torch.optim.SGD(layer.parameters(), lr=rate, momentum=_MOMENTUM),
            data_loader=torch.utils.data.DataLoader(rows, batch_size=len(rows)),
            target_epsilon=task.promise[0],
            target_delta=task.promise[1],
            epochs=STEPS,
            max_grad_norm=CLIP,
            poisson_sampling=False,
        )
        for _ in range(STEPS):
            small = memory.BatchMemoryManager(data_loader=loader, max_physical_batch_size=_PORTION, optimizer=optimizer)
            with small as portions:
                for values, labels in portions:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(layer(values), labels).backward()
                    optimizer.step()
        with torch.no_grad():
            found = torch.softmax(layer(torch.tensor(queries, dtype=torch.float32)), dim=1)
    return np.asarray(found, dtype=np.float64)


def noisy_sgd(task: Task, rate: float, seed: int) -> FloatArray:
    """A linear model by NoisySGD, with the epochs, batches and clip of its paper."""
    terms: dict[str, Any] = {"learning_rate": rate, "random_state": seed, "classes": np.arange(task.n_classes)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = _unit(task.queries) @ LinearNoisySGD(*task.promise, **terms).fit(task.X, task.y).coef_.T
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(likely / likely.sum(axis=1, keepdims=True), dtype=np.float64)


RATES: dict[Linear, tuple[float, ...]] = {opacus_linear: (0.5, 2.0, 8.0, 32.0), noisy_sgd: (4.0, 16.0, 64.0)}
"""The learning rates from which the best one is chosen."""


def without_gaps(table: Any, public: Any) -> Any:
    """A frame without missing values, which DP-EBM refuses: medians of public rows, and "?" for categories."""
    return table.fillna(public.median(numeric_only=True)).fillna("?")


def dp_ebm(table: Any, y: IntArray, queries: Any, promise: tuple[float, float], seed: int) -> FloatArray:
    """InterpretML's private boosting machine with its defaults, on the raw table."""
    privacy = needs("interpret.privacy", "peers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = privacy.DPExplainableBoostingClassifier(epsilon=promise[0], delta=promise[1], random_state=seed)
        return np.asarray(model.fit(table, y).predict_proba(queries), dtype=np.float64)


def logistic(X: FloatArray, y: IntArray, queries: FloatArray, n_classes: int) -> FloatArray:
    """Logistic regression without privacy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(max_iter=300).fit(X, y)
    return _all_classes(model.predict_proba(queries), model.classes_, n_classes)


def trees(X: FloatArray, y: IntArray, queries: FloatArray, n_classes: int) -> FloatArray:
    """Boosted trees without privacy."""
    model = HistGradientBoostingClassifier(random_state=0).fit(X, y)
    return _all_classes(model.predict_proba(queries), model.classes_, n_classes)


def _all_classes(found: FloatArray, classes: Sequence[int], n_classes: int) -> FloatArray:
    every = np.zeros((len(found), n_classes))
    every[:, np.asarray(classes, dtype=np.int64)] = found
    return every


def _unit(X: FloatArray) -> FloatArray:
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12), dtype=np.float64)

"""The whole idea in a minute: private answers, who paid what, a person forgotten, nothing refunded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from indknn.cli.demonstration import load_fashion_mini
from indknn.cli.options import wanted
from indknn.errors import InvalidInputError
from indknn.estimator import IndKNNClassifier
from indknn.ledger.figures import epsilon_of
from indknn.settings import PARAMETERS
from indknn.types import FloatArray

DELTA: float = PARAMETERS["delta"].default
_BATCH = 50
_PUBLIC = 1000
_BINS = 10
_BAR = 40

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration found. `share` is what each person has spent, as a share of the budget."""

    epsilon: float
    budget: float
    correct: FloatArray
    paper_correct: FloatArray
    plain_accuracy: float
    vote_accuracy: float
    share: FloatArray
    person: int
    rho_before: float
    rho_forgotten: float
    rho_back: float

    @property
    def accuracy(self) -> float:
        """Of the private answers."""
        return float(self.correct.mean())


def run(*, queries: int, epsilon: float, tau: float, sigma2: float, progress: Progress) -> DemoResult:
    """Answer queries privately from 50,000 records; then forget one person, and let them come back.

    `tau` and `sigma2` are for the paper's Algorithm 3, which is run beside the default.
    """
    data = load_fashion_mini()
    if not 1 <= queries <= len(data.y_test):
        raise InvalidInputError(f"queries must be between 1 and {len(data.y_test)}, got {queries}")
    Q, truth = data.X_test[:queries], data.y_test[:queries]
    labels = np.arange(10)  # of Fashion-MNIST: public
    model = IndKNNClassifier(epsilon, DELTA, classes=labels, public=data.X_test[-_PUBLIC:])
    paper = IndKNNClassifier(epsilon, DELTA, classes=labels, max_queries=queries, tau=tau, sigma2=sigma2, reuse="none")
    correct, paper_correct = np.zeros(queries), np.zeros(queries)
    for one, right, name in ((model, correct, "private answers"), (paper, paper_correct, "Algorithm 3")):
        one.fit(data.X_train, data.y_train)
        for low in range(0, queries, _BATCH):
            batch = slice(low, low + _BATCH)
            right[batch] = one.predict(Q[batch]) == truth[batch]
            progress(name, min(low + _BATCH, queries), queries)
    plain = KNeighborsClassifier(n_neighbors=15, metric="cosine").fit(data.X_train, data.y_train)
    one_hot = np.eye(len(model.classes_), dtype=np.float32)[data.y_train]
    plain_correct, vote_correct = np.zeros(queries), np.zeros(queries)
    for low in range(0, queries, _BATCH):
        batch = slice(low, low + _BATCH)
        plain_correct[batch] = plain.predict(Q[batch]) == truth[batch]
        kappa = Q[batch] @ data.X_train.T
        vote_correct[batch] = ((kappa * (kappa >= tau)) @ one_hot).argmax(axis=1) == truth[batch]
        progress("the same without privacy", min(low + _BATCH, queries), queries)
    spent = model.privacy_spent()
    person = int(model.owners_[spent.argmax()])
    model.forget([person])
    (forgotten,) = model.privacy_spent([person])
    model.partial_fit(data.X_train[[person]], data.y_train[[person]], owners=[person])
    (back,) = model.privacy_spent([person])
    return DemoResult(
        epsilon=epsilon,
        budget=model.budget_,
        correct=correct,
        paper_correct=paper_correct,
        plain_accuracy=float(plain_correct.mean()),
        vote_accuracy=float(vote_correct.mean()),
        share=spent / model.budget_,
        person=person,
        rho_before=float(spent[person]),
        rho_forgotten=float(forgotten),
        rho_back=float(back),
    )


def story(r: DemoResult) -> str:
    """The result in plain words."""
    counts, edges = np.histogram(r.share, bins=_BINS, range=(0.0, 1.0))
    bars = "\n".join(
        f"  {low:4.0%} to {high:4.0%}  {'█' * round(_BAR * n / counts.max()):<{_BAR}} {n:,}"
        for n, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
    )
    median = epsilon_of(float(np.median(r.share)) * r.budget, DELTA, "gdp")
    return f"""
{len(r.correct):,} queries were answered from the records of {len(r.share):,} people.

  {r.accuracy:.3f}  accuracy with privacy, epsilon = {r.epsilon:g}, however many queries follow
  {r.paper_correct.mean():.3f}  the paper's Algorithm 3, planned for just these queries
  {r.vote_accuracy:.3f}  its vote without noise and budgets
  {r.plain_accuracy:.3f}  plain kNN (k = 15), no privacy

Every person was promised epsilon = {r.epsilon:g} at delta = {DELTA:g} (by the filter gdp) against the one analyst
who asked: a budget of B = {r.budget:.4f}. Each paid exactly for what their record contributed. Spent so far, as a share
of B:

{bars}

The median person has spent {np.median(r.share):.0%} of B, which is epsilon = {median:.2f}.
Nobody is above 100%: the largest share is {np.floor(r.share.max() * 1e6) / 1e4:.4f}%.

Person {r.person} asks to be forgotten. Their record is gone at once, without retraining.
  {r.rho_before:.6f}  spent before
  {r.rho_forgotten:.6f}  spent after being forgotten (kept under a keyed hash of the name)
  {r.rho_back:.6f}  spent after coming back: {_verdict(r)}
"""


def picture(r: DemoResult, path: Path) -> str:
    """Draw accuracy over the queries and the histogram of spent budgets; where the PNG is, or what is missing."""
    try:
        with wanted("lab"):
            from matplotlib.figure import Figure  # noqa: PLC0415
    except InvalidInputError as error:
        return f"No picture: {error}"
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    asked = np.arange(1, len(r.correct) + 1)
    left.plot(asked, np.cumsum(r.correct) / asked, color="tab:blue", label=f"private, ε = {r.epsilon:g}")
    left.plot(asked, np.cumsum(r.paper_correct) / asked, color="tab:cyan", label="Algorithm 3")
    left.axhline(r.plain_accuracy, color="tab:gray", linestyle="--", label="plain kNN, no privacy")
    left.axhline(r.vote_accuracy, color="tab:gray", linestyle=":", label="same vote, no noise")
    left.set(xlabel="queries answered", ylabel="accuracy so far", ylim=(0, 1), title="Private answers")
    left.legend(loc="lower right")
    right.hist(100 * r.share, bins=40, range=(0, 100), color="tab:orange")
    right.set(xlabel="% of the budget spent", ylabel="people", title="Who paid what")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"Picture: {path}"


def _verdict(r: DemoResult) -> str:
    return "nothing was refunded" if r.rho_back == r.rho_before == r.rho_forgotten else "THIS IS A BUG"

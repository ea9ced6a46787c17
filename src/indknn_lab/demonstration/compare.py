"""The demonstration: what training costs, private answers and other methods, who paid what, a person who leaves.

The report is one page of HTML that loads nothing else. Its charts are SVG.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import floor, sqrt
from pathlib import Path
from string import Template

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from indknn import __version__
from indknn.core import accounting
from indknn.errors import InvalidInputError
from indknn.estimator import IndKNNClassifier
from indknn.ledger.figures import epsilon_of
from indknn.models import shared_model
from indknn.settings import MODEL_SHARE, PARAMETERS
from indknn.types import Float32Array, FloatArray
from indknn_lab.datasets import Dataset, load_fashion_mini
from indknn_lab.public_rows import public_rows_only

DELTA: float = PARAMETERS["delta"].default
STEPS, CLIP, RATE, MOMENTUM = 40, 0.1, 80.0, 0.8
"""These values are good on this data. No budget covers the search for them, so private training looks a little better
than it is."""
_BATCH, _PUBLIC, _BOB, _BINS, _BAR, _ENOUGH = 50, 1000, 200, 10, 40, 0.001
_LABELS = np.arange(10)  # the labels of Fashion-MNIST, which are public

Progress = Callable[[str, int, int], None]
Answer = Callable[[Float32Array], npt.NDArray[np.int_]]


@dataclass(frozen=True)
class DemoResult:
    """The results of the demonstration.

    `model` is what each person has paid for the shared model, and `votes` what they have paid for votes on Alice's
    queries, as shares of the budget.
    """

    epsilon: float
    budget: float
    accuracy: dict[str, float]
    queries: int
    model: FloatArray
    votes: FloatArray
    bob_accuracy: float
    bob_median: float
    together: float
    """How much ρ the person who spent most has spent with both analysts together."""
    person: str
    seconds: float
    spent: dict[str, float]
    """How much ρ this person had spent before leaving, when forgotten, after another analyst asked, and when back."""

    @property
    def share(self) -> FloatArray:
        """The share of the budget that each person has spent with Alice, for the model and for votes."""
        return self.model + self.votes

    @property
    def verdict(self) -> str:
        """A sentence that says whether forgetting refunded anything."""
        return "nothing was refunded" if len(set(self.spent.values())) == 1 else "THIS IS A BUG"


OURS = "indknn"
PAPER = "the paper's way, votes alone"
ONCE = "private training, once"
PUBLIC = "public rows only"
LINEAR = "logistic regression, no privacy"
PLAIN = "nearest neighbours, no privacy"
KINDS = {OURS: "ours", PAPER: "ours", ONCE: "rival", PUBLIC: "none", LINEAR: "none", PLAIN: "none"}


def promise(epsilon: float) -> str:
    """What the demonstration will cost people at most. It is said before anything is trained."""
    share, budget = MODEL_SHARE, accounting.budget(epsilon, DELTA)
    return f"""
50,000 people each gave one picture. Everybody is promised epsilon = {epsilon:g} at delta = {DELTA:g} against one
analyst. That is a budget of B = {budget:.4f} for each person (by the filter gdp).

First a shared model is trained, once for all analysts. Everybody pays for their own gradient: at most {share:.0%} of B.
The other {1 - share:.0%} is for votes of people near queries about which the model is unsure.
"""


def run(*, queries: int, epsilon: float, tau: float, sigma2: float, progress: Progress) -> DemoResult:
    """Train the shared model, answer queries privately from 50,000 records, and compare with other methods.

    Then one person leaves, and a second analyst asks. `tau` and `sigma2` are for the paper's Algorithm 3, which is one
    of the other methods.
    """
    data = load_fashion_mini()
    if not 1 <= queries <= len(data.y_test):
        raise InvalidInputError(f"queries must be between 1 and {len(data.y_test)}, got {queries}")
    known = public, public_labels = data.X_test[-_PUBLIC:], data.y_test[-_PUBLIC:]
    records = data.X_train, data.y_train
    model = IndKNNClassifier(epsilon, DELTA, classes=_LABELS, public=known)
    paper = IndKNNClassifier(epsilon, DELTA, classes=_LABELS, mode="votes", max_queries=queries, tau=tau, sigma2=sigma2)
    for one in (model, paper):
        one.fit(*records)
    for made, all_steps in _training(model):
        progress("the shared model", made, all_steps)
    for_model = model.privacy_spent()
    methods: dict[str, Callable[[], Answer]] = {
        OURS: lambda: lambda Q: model.predict(Q, analyst="alice"),
        PAPER: lambda: paper.predict,
        ONCE: lambda: train(*records, len(_LABELS), sqrt(2 * model.budget_), public.mean(axis=0)),
        PUBLIC: lambda: public_rows_only(public, public_labels).predict,
        LINEAR: lambda: make_pipeline(StandardScaler(), LogisticRegression(tol=_ENOUGH)).fit(*records).predict,
        PLAIN: lambda: KNeighborsClassifier(n_neighbors=15, metric="cosine").fit(*records).predict,
    }
    asked = slice(0, queries)
    accuracy = {name: _accuracy(name, make, data, asked, progress) for name, make in methods.items()}
    for_alice = model.privacy_spent(analyst="alice")
    person = str(model.owners_[for_alice.argmax()])
    spent = {"before": float(model.privacy_spent([person])[0])}
    start = time.perf_counter()
    model.forget([person])
    seconds = time.perf_counter() - start
    spent["forgotten"] = float(model.privacy_spent([person])[0])
    others = np.delete(for_alice, for_alice.argmax())
    bobs = slice(len(data.y_test) - _PUBLIC - _BOB, len(data.y_test) - _PUBLIC)
    bob = _accuracy("another analyst", lambda: lambda Q: model.predict(Q, analyst="bob"), data, bobs, progress)
    spent["later"] = float(model.privacy_spent([person])[0])
    together = model.privacy_spent()
    model.partial_fit(data.X_train[[int(person)]], data.y_train[[int(person)]], owners=[person])
    spent["back"] = float(model.privacy_spent([person])[0])
    return DemoResult(
        epsilon=epsilon,
        budget=model.budget_,
        accuracy=accuracy,
        queries=queries,
        model=for_model / model.budget_,
        votes=(for_alice - for_model) / model.budget_,
        bob_accuracy=bob,
        bob_median=float(np.median(together - others)) / model.budget_,
        together=max(float(together.max()), spent["before"]),
        person=person,
        seconds=seconds,
        spent=spent,
    )


def _training(model: IndKNNClassifier) -> Iterator[tuple[int, int]]:
    """Train the shared model, and say after each step how many of how many were made."""
    steps = shared_model.STEPS
    yield 0, steps
    for step in model._engine.train():
        yield step.made, step.made + step.follow or steps
    yield steps, steps


def _accuracy(name: str, make: Callable[[], Answer], data: Dataset, asked: slice, progress: Progress) -> float:
    Q, truth = data.X_test[asked], data.y_test[asked]
    progress(name, 0, len(Q))
    answer, right = make(), 0
    for low in range(0, len(Q), _BATCH):
        batch = slice(low, low + _BATCH)
        right += int((answer(Q[batch]) == truth[batch]).sum())
        progress(name, min(low + _BATCH, len(Q)), len(Q))
    return right / len(Q)


def _epsilon(rho: float) -> str:
    found = epsilon_of(rho, DELTA, "gdp")
    return "unknown" if found is None else f"{found:.2f}"


def _counts(shares: FloatArray, most: float) -> list[int]:
    """How many people have which share, in ten steps up to `most`."""
    return [int(n) for n in np.histogram(shares, bins=_BINS, range=(0.0, most))[0]]


def _told(shares: FloatArray, most: float) -> str:
    """A chart in text of how many people have paid which share of the budget."""
    counts, step = _counts(shares, most), 100 * most / _BINS
    return "\n".join(
        f"  {step * i:3.0f}% to {step * (i + 1):3.0f}%  {'█' * round(_BAR * n / max(*counts, 1)):<{_BAR}} {n:,}"
        for i, n in enumerate(counts)
    )


def _facts(r: DemoResult) -> dict[str, str]:
    median = float(np.median(r.share))
    return {
        "people": f"{len(r.share):,}",
        "epsilon": f"{r.epsilon:g}",
        "delta": f"{DELTA:g}",
        "model_share": f"{MODEL_SHARE:.0%}",
        "votes_share": f"{1 - MODEL_SHARE:.0%}",
        "queries": f"{r.queries:,}",
        "public_rows": f"{_PUBLIC:,}",
        "payers": f"{np.count_nonzero(r.model):,}",
        "most": f"{floor(r.model.max() * 1e4) / 1e2:.2f}%",
        "voters": f"{np.count_nonzero(r.votes):,}",
        "median": f"{median:.0%}",
        "median_epsilon": _epsilon(median * r.budget),
        "largest": f"{floor(r.share.max() * 1e6) / 1e4:.4f}%",
        "bob_queries": f"{_BOB}",
        "bob_accuracy": f"{r.bob_accuracy:.3f}",
        "bob_median": f"{r.bob_median:.2%}",
        "together": _epsilon(r.together),
        "person": r.person,
        "seconds": f"{r.seconds * 1e3:.1f} ms",
        **{when: f"{rho:.6f}" for when, rho in r.spent.items()},
        "verdict": r.verdict,
        "version": __version__,
    }


def _filled(template: str, **texts: str) -> str:
    return Template((files("indknn_lab.demonstration") / template).read_text(encoding="utf-8")).substitute(texts)


def story(r: DemoResult) -> str:
    """The result in plain words."""
    table = "\n".join(f"  {share:.3f}  {name}" for name, share in r.accuracy.items())
    charts = {"for_model": _told(r.model, 1.0), "for_votes": _told(r.votes, 1 - MODEL_SHARE)}
    return _filled("story.txt", **_facts(r), **charts, accuracy=table, ours=OURS, public=PUBLIC)


def write_report(r: DemoResult, path: Path) -> None:
    """Write the result as a page of HTML."""
    drawn = {
        "accuracy": _bars([(name, share, KINDS[name]) for name, share in r.accuracy.items()]),
        "for_model": _spending(_counts(r.model, 1.0), 100),
        "for_votes": _spending(_counts(r.votes, 1 - MODEL_SHARE), round(100 * (1 - MODEL_SHARE))),
    }
    page = _filled("report.html", **{name: escape(text) for name, text in _facts(r).items()}, **drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def train(X: Float32Array, y: npt.NDArray[np.int_], classes: int, mu: float, center: Float32Array) -> Answer:
    """The answers of a linear model trained with noisy gradients, once, for μ in total. `center` must be public.

    It uses full batches, so its privacy loss is known exactly. Each of n steps is a Gaussian mechanism. All of them
    together are μ-GDP if the noise is sqrt(n)/μ times the clip. Use it only for the demonstration.
    `indknn_lab.baselines` has other methods with exact noise.
    """
    features, rng = _features(X, center), np.random.default_rng()
    lengths, truth = np.linalg.norm(features, axis=1), np.eye(classes, dtype=np.float32)[y]
    weights = np.zeros((features.shape[1], classes), dtype=np.float32)
    mean, velocity = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(STEPS):
        logits = features @ weights
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        residuals = shares / shares.sum(axis=1, keepdims=True) - truth
        sizes = lengths * np.linalg.norm(residuals, axis=1)
        residuals *= np.minimum(1.0, CLIP / np.maximum(sizes, 1e-9))[:, None]
        noise = rng.normal(scale=CLIP * sqrt(STEPS) / mu, size=weights.shape)
        velocity = MOMENTUM * velocity + (features.T @ residuals + noise) / len(X)
        weights = (weights - RATE / CLIP * velocity).astype(np.float32)
        if step >= STEPS // 2:
            mean += weights
    return lambda Q: np.asarray((_features(Q, center) @ mean).argmax(axis=1))


def _features(X: Float32Array, center: Float32Array) -> Float32Array:
    moved = X - center
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return np.hstack([moved, np.full((len(X), 1), 0.5, dtype=np.float32)])


_WIDTH, _ROW, _LEFT = 500, 34, 220
_FLOOR = 0.6  # the accuracy at which bars begin; all results are above it


def _bars(bars: Sequence[tuple[str, float, str]]) -> str:
    rows = []
    for i, (name, share, kind) in enumerate(bars):
        y, width = _ROW * i + 22, max(2, round((_WIDTH - _LEFT - 50) * (share - _FLOOR) / (1 - _FLOOR)))
        rows += [
            f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{_LEFT}" y="{y - 16}" width="{width}" height="22" rx="3"/>',
            f'<text x="{_LEFT + width + 8}" y="{y}">{share:.3f}</text>',
        ]
    return _svg("Share of right answers", _ROW * len(bars) + 6, rows)


def _spending(counts: Sequence[int], percent: int) -> str:
    """Bars: how many people have paid which share of the budget. The last bar ends at `percent`."""
    step, rows = _WIDTH // len(counts), []
    for i, n in enumerate(counts):
        height, middle = round(140 * n / max(*counts, 1)), step * i + step // 2
        label = f"{percent * (i + 1) // len(counts)}%"
        rows += [
            f'<rect class="ours" x="{step * i + 4}" y="{170 - height}" width="{step - 8}" height="{height}" rx="2"/>',
            f'<text x="{middle}" y="{162 - height}" text-anchor="middle">{n:,}</text>',
            f'<text class="soft" x="{middle}" y="190" text-anchor="middle">{label}</text>',
        ]
    return _svg("How many people have spent which share of their budget", 200, rows)


def _svg(label: str, height: int, rows: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(rows)}</svg>'

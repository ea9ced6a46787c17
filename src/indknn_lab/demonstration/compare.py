"""The demonstration: private answers and other methods, who paid what, a second analyst, a person who leaves.

The report is one page of HTML that loads nothing else. Its charts are SVG.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import floor, sqrt
from pathlib import Path
from string import Template

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import KNeighborsClassifier

from indknn import __version__
from indknn.errors import InvalidInputError
from indknn.estimator import IndKNNClassifier
from indknn.ledger.figures import epsilon_of
from indknn.settings import PARAMETERS
from indknn.types import Float32Array, FloatArray
from indknn_lab.datasets.features import Dataset, load_fashion_mini

DELTA: float = PARAMETERS["delta"].default
TRAININGS = 52
"""How often private training would run in a year if somebody left every week."""
STEPS, CLIP, RATE, MOMENTUM = 40, 0.1, 80.0, 0.8
"""These values are good on this data. No budget covers the search for them, so private training looks a little better
than it is."""
_BATCH, _PUBLIC, _BOB, _BINS, _BAR = 50, 1000, 200, 10, 40
_LABELS = np.arange(10)  # the labels of Fashion-MNIST, which are public

Progress = Callable[[str, int, int], None]
Answer = Callable[[Float32Array], npt.NDArray[np.int_]]


@dataclass(frozen=True)
class DemoResult:
    """The results of the demonstration. `share` is what each person has spent with Alice, as a share of the budget."""

    epsilon: float
    budget: float
    accuracy: dict[str, float]
    queries: int
    share: FloatArray
    bob_accuracy: float
    bob_median: float
    together: float
    """How much ρ the person who spent most has spent with both analysts together."""
    person: str
    seconds: float
    rho_before: float
    rho_forgotten: float
    rho_back: float

    @property
    def median(self) -> float:
        """The share that the median person has spent with Alice."""
        return float(np.median(self.share))

    @property
    def counts(self) -> list[int]:
        """How many people have spent 0 to 10% of the budget, 10 to 20%, and so on."""
        return [int(n) for n in np.histogram(self.share, bins=_BINS, range=(0.0, 1.0))[0]]

    @property
    def verdict(self) -> str:
        """A sentence that says whether forgetting refunded anything."""
        same = self.rho_back == self.rho_before == self.rho_forgotten
        return "nothing was refunded" if same else "THIS IS A BUG"


OURS = "indknn"
PAPER = "the paper's Algorithm 3"
ONCE = "private training, once"
OFTEN = f"private training, {TRAININGS} times"
VOTE = "the vote without privacy"
PLAIN = "plain kNN without privacy"
KINDS = {OURS: "ours", PAPER: "ours", ONCE: "rival", OFTEN: "rival", VOTE: "none", PLAIN: "none"}


def run(*, queries: int, epsilon: float, tau: float, sigma2: float, progress: Progress) -> DemoResult:
    """Answer queries privately from 50,000 records, and compare with other methods.

    Then a second analyst asks, and one person leaves. `tau` and `sigma2` are for the paper's Algorithm 3, which is one
    of the other methods.
    """
    data = load_fashion_mini()
    if not 1 <= queries <= len(data.y_test):
        raise InvalidInputError(f"queries must be between 1 and {len(data.y_test)}, got {queries}")
    public = data.X_test[-_PUBLIC:]
    model = IndKNNClassifier(epsilon, DELTA, classes=_LABELS, public=public)
    paper = IndKNNClassifier(epsilon, DELTA, classes=_LABELS, max_queries=queries, tau=tau, sigma2=sigma2, reuse="none")
    for one in (model, paper):
        one.fit(data.X_train, data.y_train)
    mu, center = sqrt(2 * model.budget_), public.mean(axis=0)
    trained = [train(data.X_train, data.y_train, len(_LABELS), mu / sqrt(times), center) for times in (1, TRAININGS)]
    plain = KNeighborsClassifier(n_neighbors=15, metric="cosine").fit(data.X_train, data.y_train)
    one_hot = np.eye(len(_LABELS), dtype=np.float32)[data.y_train]

    def vote(Q: Float32Array) -> npt.NDArray[np.int_]:
        kappa = Q @ data.X_train.T
        return np.asarray(((kappa * (kappa >= tau)) @ one_hot).argmax(axis=1))

    methods: dict[str, Answer] = {
        OURS: lambda Q: model.predict(Q, analyst="alice"),
        PAPER: paper.predict,
        ONCE: trained[0].predict,
        OFTEN: trained[1].predict,
        VOTE: vote,
        PLAIN: plain.predict,
    }
    asked = slice(0, queries)
    accuracy = {name: _accuracy(name, answer, data, asked, progress) for name, answer in methods.items()}
    for_alice = model.privacy_spent(analyst="alice")
    bobs = slice(len(data.y_test) - _PUBLIC - _BOB, len(data.y_test) - _PUBLIC)
    bob = _accuracy("another analyst", lambda Q: model.predict(Q, analyst="bob"), data, bobs, progress)
    together = model.privacy_spent()
    person = str(model.owners_[for_alice.argmax()])
    (before,) = model.privacy_spent([person])
    start = time.perf_counter()
    model.forget([person])
    seconds = time.perf_counter() - start
    (forgotten,) = model.privacy_spent([person])
    model.partial_fit(data.X_train[[int(person)]], data.y_train[[int(person)]], owners=[person])
    (back,) = model.privacy_spent([person])
    return DemoResult(
        epsilon=epsilon,
        budget=model.budget_,
        accuracy=accuracy,
        queries=queries,
        share=for_alice / model.budget_,
        bob_accuracy=bob,
        bob_median=float(np.median(together - for_alice)) / model.budget_,
        together=float(together.max()),
        person=person,
        seconds=seconds,
        rho_before=float(before),
        rho_forgotten=float(forgotten),
        rho_back=float(back),
    )


def _accuracy(name: str, answer: Answer, data: Dataset, asked: slice, progress: Progress) -> float:
    Q, truth = data.X_test[asked], data.y_test[asked]
    right = 0
    for low in range(0, len(Q), _BATCH):
        batch = slice(low, low + _BATCH)
        right += int((answer(Q[batch]) == truth[batch]).sum())
        progress(name, min(low + _BATCH, len(Q)), len(Q))
    return right / len(Q)


def _epsilon(rho: float) -> str:
    found = epsilon_of(rho, DELTA, "gdp")
    return "unknown" if found is None else f"{found:.2f}"


def story(r: DemoResult) -> str:
    """The result in plain words."""
    most = max(*r.counts, 1)
    bars = "\n".join(
        f"  {10 * i:3d}% to {10 * i + 10:3d}%  {'█' * round(_BAR * n / most):<{_BAR}} {n:,}"
        for i, n in enumerate(r.counts)
    )
    table = "\n".join(f"  {share:.3f}  {name}" for name, share in r.accuracy.items())
    return f"""
{r.queries:,} queries of Alice were answered from the records of {len(r.share):,} people. How many answers are right:

{table}

Private answers and private training promise epsilon = {r.epsilon:g} at delta = {DELTA:g} (by the filter gdp) against
one analyst: a budget of B = {r.budget:.4f}. If people leave and a model is trained {TRAININGS} times, the same epsilon
must pay for all trainings.

Training charges everybody all of B. Here each person paid exactly for what their record contributed:

{bars}

The median person has spent {r.median:.0%} of B, which is epsilon = {_epsilon(r.median * r.budget)}.
Nobody is above 100%: the largest share is {floor(r.share.max() * 1e6) / 1e4:.4f}%.

Bob asks {_BOB} queries of his own: {r.bob_accuracy:.3f} are right. The model is paid for, so the median person
pays {r.bob_median:.2%} of B. Both analysts together have seen what costs at most epsilon = {_epsilon(r.together)} of
anybody.

Person {r.person} asks to be forgotten. Their record is gone in {r.seconds * 1e3:.1f} ms, and nothing is trained again.
  {r.rho_before:.6f}  spent before
  {r.rho_forgotten:.6f}  spent after being forgotten (kept under a keyed hash of the name)
  {r.rho_back:.6f}  spent after coming back: {r.verdict}
"""


def write_report(r: DemoResult, path: Path) -> None:
    """Write the result as a page of HTML."""
    facts = {
        "people": f"{len(r.share):,}",
        "epsilon": f"{r.epsilon:g}",
        "delta": f"{DELTA:g}",
        "queries": f"{r.queries:,}",
        "median": f"{r.median:.0%}",
        "median_epsilon": _epsilon(r.median * r.budget),
        "bob_queries": f"{_BOB}",
        "bob_accuracy": f"{r.bob_accuracy:.3f}",
        "bob_median": f"{r.bob_median:.2%}",
        "together": _epsilon(r.together),
        "person": r.person,
        "seconds": f"{r.seconds * 1e3:.1f} ms",
        "before": f"{r.rho_before:.6f}",
        "forgotten": f"{r.rho_forgotten:.6f}",
        "back": f"{r.rho_back:.6f}",
        "verdict": r.verdict,
        "version": __version__,
    }
    bars = [(name, share, KINDS[name]) for name, share in r.accuracy.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page("Private predictions, in a minute", facts, bars, r.counts), encoding="utf-8")


def train(X: Float32Array, y: npt.NDArray[np.int_], classes: int, mu: float, center: Float32Array) -> LinearModel:
    """A linear model trained with noisy gradients, once, for μ in total. `center` must be public.

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
    return LinearModel(mean, center)


class LinearModel:
    """The weights, and the center that is subtracted from every row."""

    def __init__(self, weights: Float32Array, center: Float32Array):
        self._weights, self._center = weights, center

    def predict(self, Q: Float32Array) -> npt.NDArray[np.int_]:
        """The most likely class of each row. It costs no budget, however often it is called."""
        return np.asarray((_features(Q, self._center) @ self._weights).argmax(axis=1))


def _features(X: Float32Array, center: Float32Array) -> Float32Array:
    moved = X - center
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return np.hstack([moved, np.full((len(X), 1), 0.5, dtype=np.float32)])


_WIDTH, _ROW, _LEFT = 500, 34, 190
_FLOOR = 0.6  # the accuracy at which bars begin; all results are above it


def page(title: str, facts: dict[str, str], accuracy: Sequence[tuple[str, float, str]], counts: Sequence[int]) -> str:
    """The page. `accuracy` has a name, a share and a kind for each bar.

    `counts` are the numbers of people by the tenth of the budget that they have spent.
    """
    template = Template((files("indknn_lab.demonstration") / "report.html").read_text())
    drawn = {"accuracy": _bars(accuracy), "spending": _spending(counts)}
    return template.substitute({name: escape(text) for name, text in facts.items()}, title=escape(title), **drawn)


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


def _spending(counts: Sequence[int]) -> str:
    step, rows = _WIDTH // len(counts), []
    for i, n in enumerate(counts):
        height, middle = round(140 * n / max(*counts, 1)), step * i + step // 2
        rows += [
            f'<rect class="ours" x="{step * i + 4}" y="{170 - height}" width="{step - 8}" height="{height}" rx="2"/>',
            f'<text x="{middle}" y="{162 - height}" text-anchor="middle">{n:,}</text>',
            f'<text class="soft" x="{middle}" y="190" text-anchor="middle">to {100 * (i + 1) // len(counts)}%</text>',
        ]
    return _svg("How many people have spent which share of their budget", 200, rows)


def _svg(label: str, height: int, rows: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(rows)}</svg>'

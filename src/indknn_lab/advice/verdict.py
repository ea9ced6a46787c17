"""Chooses the right tool for a task: the most accurate one at equal privacy, among those that can do the task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

import numpy as np

from indknn.errors import InvalidInputError
from indknn.settings import MAX_FEATURES
from indknn_lab.advice.measurements import Measurements, Method

LEVEL = 0.01
"""Smaller differences are ignored, because the measurements are medians of only one or two runs."""
_MANY: list[int] = np.unique(np.geomspace(1, 10_000, 200).round()).astype(int).tolist()


@dataclass(frozen=True)
class Task:
    """A task: the numbers of records, queries and updates over some time, and one privacy guarantee for all of it."""

    n: int
    queries: int
    updates: int
    epsilon: float
    features: int | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("queries", 1), ("updates", 0), ("features", 1), ("classes", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidInputError(f"{name} must be at least {least}, got {value!r}")
        if not 0.0 < self.epsilon < float("inf"):
            raise InvalidInputError(f"epsilon must be above 0, got {self.epsilon!r}")


@dataclass(frozen=True)
class Option:
    """One tool: its accuracy on each data set, whether it can do the task, and what the user should know about it."""

    name: str
    accuracy: dict[str, float]
    fit: bool
    note: str
    outside: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """The mean accuracy over the data sets."""
        return mean(self.accuracy.values())


@dataclass(frozen=True)
class Verdict:
    """All options, best first, those that are about as good as the best, the reasons, and warnings."""

    options: list[Option]
    level: list[str]
    reasons: list[str]
    cautions: list[str]

    @property
    def best(self) -> Option:
        """The right tool: the most accurate one that can do the task."""
        return next(option for option in self.options if option.fit)


def judge(task: Task, known: Measurements) -> Verdict:
    """Compare the tools for a task."""
    options = sorted(_options(task, known), key=lambda option: -option.mean)
    fit = [option for option in options if option.fit]
    level = [option.name for option in fit[1:] if option.mean > fit[0].mean - LEVEL]
    return Verdict(options, level, _reasons(task, known, fit), _cautions(task, known, options))


def _options(task: Task, known: Measurements) -> list[Option]:
    def option(name: str, method: Method, load: int, note: str, fit: bool = True) -> Option:
        found = {data: known.estimate(data, method, task.n, task.epsilon, load) for data in known.data}
        where = _by_text((known.title(data), estimate.outside) for data, estimate in found.items())
        outside = (t if len(on) == len(found) else f"{t} on {' and '.join(on)}" for t, on in where.items())
        return Option(name, {d: e.accuracy for d, e in found.items()}, fit, note, tuple(outside))

    q, r = task.queries, task.updates
    once = "learns nothing new, and leavers stay in the model" if r else "any number of queries"
    found = [
        option("Ind-KNN", "endless", q, "newcomers join by further rounds; what was released of leavers stays"),
        option("Ind-KNN, Algorithm 3", "algorithm3", q, "updates cost nothing; leavers are gone at once"),
        option("Private-kNN", "private_knn", q, f"updates cost nothing; refuses after {q:,} queries"),
        option("NoisySGD, trained once", "noisy_sgd", 0, once, not r),
    ]
    if r:
        note = f"the promise is shared by {r + 1:,} trainings"
        found.append(option("NoisySGD, retrained at every update", "noisy_sgd", r, note))
    return found


def _reasons(task: Task, known: Measurements, fit: list[Option]) -> list[str]:
    best, second = fit[:2]
    reasons = [
        f"At epsilon = {task.epsilon:g} it is expected to be right in {best.mean:.1%} of answers, "
        f"{100 * (best.mean - second.mean):.1f} points ahead of {second.name}."
    ]
    if task.updates and best.name.startswith("Ind-KNN"):
        reasons.append(_about_retraining(task, known, best))
    elif task.updates:
        text = f"Its noise for {task.updates + 1:,} trainings is still less than what queries cost the others."
        reasons.append(text)
    elif best.name.startswith("NoisySGD"):
        reasons.append("Nothing changes, so one training answers for ever, and queries cost nothing.")
    winners = {d: max(fit, key=lambda option: option.accuracy[d]).name for d in known.data}
    if len(set(winners.values())) > 1:
        texts = (f"{known.title(d)}: {name}" for d, name in winners.items())
        reasons.append(f"The data sets disagree: {'; '.join(texts)}.")
    return reasons


def _about_retraining(task: Task, known: Measurements, best: Option) -> str:
    """A sentence that says with how many retrainings NoisySGD would be as good."""

    def accuracy(r: int) -> float:
        return mean(known.estimate(d, "noisy_sgd", task.n, task.epsilon, r).accuracy for d in known.data)

    most = max((r for r in _MANY if accuracy(r) > best.mean - LEVEL), default=None)
    if most is None:
        return "NoisySGD falls short of it even with a single retraining."
    if most < task.updates:
        return f"NoisySGD would be level or better with up to {most:,} retrainings; {task.updates:,} are to come."
    return f"NoisySGD is about level at {task.updates:,} retrainings."


def _cautions(task: Task, known: Measurements, options: list[Option]) -> list[str]:
    who = _by_text((option.name, option.outside) for option in options)
    found = [
        f"outside what was measured: {text}" + ("" if len(names) == len(options) else f", for {' and '.join(names)}")
        for text, names in who.items()
    ]
    for name, value in (("classes", task.classes), ("features", task.features)):
        measured = [int(known.about[data][name]) for data in known.data]
        if value is not None and not min(measured) / 2 <= value <= max(measured) * 2:
            found.append(f"{value:,} {name}: measured with {' and '.join(map(str, sorted(measured)))}")
    if task.features is not None and task.features > MAX_FEATURES:
        found.append(f"the shared model takes at most {MAX_FEATURES:,} features: only Algorithm 3 is left of Ind-KNN")
    return [*found, "no drift was measured: the data of the stream stay as they are"]


def _by_text(said: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Group by text: for each text, the names that it applies to."""
    who: dict[str, list[str]] = {}
    for name, texts in said:
        for text in texts:
            who.setdefault(text, []).append(name)
    return who

"""Queries without end, change: records leave and arrive every 100 queries; classes arrive in a batch at half time."""

from __future__ import annotations

from statistics import median

from indknn_lab.experiments import worlds
from indknn_lab.experiments.curves import points
from indknn_lab.experiments.endless_figures import accuracy, length, present
from indknn_lab.experiments.methods.endless import REFITS
from indknn_lab.experiments.outcome import Body, Finding, Item, Panel, Series, Table
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.trials import LABELS, Part, Trial, epsilons, seeds, trial

EPSILONS = (0.25, 0.5, 1.0, 2.0)
METHODS = ("open", "noisy_sgd_retrained", "noisy_sgd")
CEILINGS = ("ridge", "kernel")
PARTS: tuple[Part, ...] = ("change", "drift")
_ROLES = {"open": "mixture", "noisy_sgd_retrained": "sgd_retrained", "noisy_sgd": "sgd"}
_TITLES = {"change": f"one leaves or arrives every {worlds.EVERY}", "drift": "the same, and new classes at half time"}
_RUNS = 1


def _length(setting: Setting, name: str) -> int:
    """A multiple of the step between changes, so that halves are whole."""
    return max(length(setting, name) // (2 * worlds.EVERY), 1) * 2 * worlds.EVERY


def _runs(setting: Setting, part: Part, name: str, method: str, epsilon: float | None) -> list[Trial]:
    many = seeds(setting, _RUNS) if epsilon is not None else range(1)
    return [trial(setting, part, name, method, _length(setting, name), epsilon, i) for i in many]


def _units(setting: Setting) -> list[Trial]:
    found = []
    for part in PARTS:
        for name in present(setting):
            for epsilon in epsilons(setting, EPSILONS):
                for method in METHODS:
                    found += _runs(setting, part, name, method, epsilon)
            for method in CEILINGS:
                found += _runs(setting, part, name, method, None)
    return found


def _assemble(setting: Setting, results: Results) -> Body:
    panels, tables, findings = [], [], []
    x = epsilons(setting, EPSILONS)
    for part in PARTS:
        for name in present(setting):
            title = f"{setting.title(name)}, {_length(setting, name):,} queries: " + _TITLES[part].format(
                every=worlds.EVERY
            )
            rows = [_row(setting, results, part, name, method, e) for e in x for method in METHODS]
            rows += [_row(setting, results, part, name, method, None) for method in CEILINGS]
            tables.append(Table(title, ["ε", "accuracy", "all", "first half", "second half"], rows))
            findings.append(_above(setting, results, part, name, title))
            if part == "drift":
                panels.append(_panel(setting, results, name, min(x, key=lambda e: abs(e - 1.0))))
    notes = [
        NOT_PAID_FOR,
        "NoisySGD with retraining is priced, by privacy loss distributions, for one training after every change; of "
        f"these {REFITS} are carried out, each answering for a quarter of the stream. One record more or less shows in "
        "no model. Its learning rate was searched with that noise on held-out private records.",
        "The new classes are the last quarter of them. None of their records or queries is there in the first half.",
    ]
    return Body(panels, tables, findings=findings, notes=notes)


def _score(setting: Setting, results: Results, part: Part, name: str, method: str, e: float | None) -> list[float]:
    """Of all, of the first half, of the second: medians over seeds."""
    T = _length(setting, name)
    runs = [results[unit] for unit in _runs(setting, part, name, method, e)]
    return [median(accuracy(run, *ends) for run in runs) for ends in ((0, T), (0, T // 2), (T // 2, T))]


def _row(setting: Setting, results: Results, part: Part, name: str, method: str, e: float | None) -> list[str]:
    scores = _score(setting, results, part, name, method, e)
    return ["∞" if e is None else f"{e:g}", LABELS[method], *(points(s) for s in scores)]


def _above(setting: Setting, results: Results, part: Part, name: str, title: str) -> Finding:
    texts, leads = [], []
    for e in epsilons(setting, EPSILONS):
        ours, retrained, never = (_score(setting, results, part, name, m, e)[0] for m in METHODS)
        leads.append(ours - retrained)
        texts.append(f"{points(ours)} against {points(retrained)} (never retrained: {points(never)}) at ε = {e:g}")
    return Finding(
        "With a deletion or an addition every 100 queries: above NoisySGD with retraining at equal epsilon.",
        f"{title}: {'; '.join(texts)}.",
        min(leads) > 0,
        by="goal",
    )


def _panel(setting: Setting, results: Results, name: str, e: float) -> Panel:
    T, curves = _length(setting, name), []
    width = max(T // 20 // worlds.EVERY, 1) * worlds.EVERY
    ends = [*range(width, T + 1, width)]
    for method in METHODS:
        runs = [results[unit] for unit in _runs(setting, "drift", name, method, e)]
        y = [median(accuracy(run, end - width, end) for run in runs) for end in ends]
        curves.append(Series(LABELS[method], [float(end) for end in ends], y, role=_ROLES[method]))
    (ridge,) = _runs(setting, "drift", name, "ridge", None)
    y = [accuracy(results[ridge], end - width, end) for end in ends]
    curves.append(Series(LABELS["ridge"], [float(end) for end in ends], y, role="ceiling"))
    return Panel(f"{setting.title(name)}, new classes at half time, ε = {e:g}", "queries answered", "accuracy", curves)


ITEM = Item(
    "endless_change",
    "Queries without end: records that come and go",
    ("agnews", "cifar10", "fmnist"),
    lambda setting: [*_units(setting)],
    _assemble,
)

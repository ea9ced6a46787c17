"""Queries without end, long streams: what becomes of the accuracy after many times as many queries as were planned."""

from __future__ import annotations

from statistics import median

from indknn_lab.experiments import worlds
from indknn_lab.experiments.curves import points
from indknn_lab.experiments.endless_figures import TUNED, accuracy, present
from indknn_lab.experiments.outcome import Body, Finding, Item, Panel, Series, Table
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.trials import LABELS, Trial, epsilons, private, seeds, trial

EPSILONS = (0.25, 0.5, 1.0, 2.0)
LONGEST = {"cifar10": 100_000}
"""Beyond the distinct queries where that is worth the time; elsewhere a stream ends with them."""
_QUICK_LONGEST = 2500
ALLOWED = 0.01
_RUNS = 1
_ROLES = {"open": "mixture", "votes": "votes", "noisy_sgd": "sgd", "ridge": "ceiling", "kernel": "ceiling"}
_MARKS = (10_000, 30_000, 100_000)
_POINTS = 25


def once(setting: Setting, name: str) -> int:
    """1x: what Algorithm 3 is tuned for. Five times as many distinct queries are there."""
    source = setting.sources[name][0]
    if setting.quick:
        return max(min(_QUICK_LONGEST, worlds.distinct(private(setting, source), source.public)) // 500, 1) * 100
    return max(worlds.distinct(source.private, source.public) // 500, 1) * 100


def _longest(setting: Setting, name: str) -> int:
    return max(_QUICK_LONGEST if setting.quick else LONGEST.get(name, 0), 5 * once(setting, name))


def _runs(setting: Setting, name: str, method: str, epsilon: float) -> list[Trial]:
    T = 5 * once(setting, name) if method == "votes" else _longest(setting, name)
    return [trial(setting, "streams", name, method, T, epsilon, i) for i in seeds(setting, _RUNS)]


def _ceiling(setting: Setting, name: str, method: str) -> Trial:
    return trial(setting, "streams", name, method, once(setting, name), None)


def _units(setting: Setting) -> list[Trial]:
    found = []
    for name in present(setting):
        for epsilon in epsilons(setting, EPSILONS):
            for method in ("open", "votes", "noisy_sgd"):
                found += _runs(setting, name, method, epsilon)
        found += [_ceiling(setting, name, method) for method in ("ridge", "kernel")]
    return found


def _between(setting: Setting, results: Results, name: str, method: str, e: float, start: int, stop: int) -> float:
    """The median over seeds of the accuracy there."""
    return median(accuracy(results[unit], start, stop) for unit in _runs(setting, name, method, e))


def _assemble(setting: Setting, results: Results) -> Body:
    panels, tables, findings = [], [], []
    x = epsilons(setting, EPSILONS)
    for name in present(setting):
        one = once(setting, name)
        title = f"{setting.title(name)}, 1x = {one:,} queries"
        rows: list[list[str]] = []
        for e in x:
            rows += [_row(setting, results, name, method, e) for method in ("open", "votes", "noisy_sgd")]
        for method in ("ridge", "kernel"):
            value = points(accuracy(results[_ceiling(setting, name, method)], 0, one))
            rows.append(["∞", LABELS[method], value, *[""] * (1 + len(_marks(setting, name)))])
        columns = ["ε", "accuracy", "1st of 1x", "5th of 1x", *(f"first {m:,}" for m in _marks(setting, name))]
        tables.append(Table(title, columns, rows))
        findings.append(_holds(setting, results, name, x))
        panels.append(_panel(setting, results, name, min(x, key=lambda e: abs(e - 1.0))))
    notes = [
        NOT_PAID_FOR,
        TUNED,
        f"{worlds.KEPT:.0%} of the private records stay private; the others and the test queries ask. They suffice for "
        "5x; whatever is asked beyond the last distinct query is one of them again, moved by a random vector of "
        f"{worlds.JITTER:g} of its length, so that it is no repeat, which would be free.",
        "NoisySGD is trained once on the same private records, its learning rate searched on held-out ones.",
    ]
    return Body(panels, tables, findings=findings, notes=notes)


def _marks(setting: Setting, name: str) -> list[int]:
    return [m for m in _MARKS if m <= _longest(setting, name)]


def _row(setting: Setting, results: Results, name: str, method: str, e: float) -> list[str]:
    one = once(setting, name)
    cells = [_between(setting, results, name, method, e, *ends) for ends in ((0, one), (4 * one, 5 * one))]
    texts = [points(value) for value in cells]
    for mark in _marks(setting, name):
        reached = mark <= _runs(setting, name, method, e)[0].T
        texts.append(points(_between(setting, results, name, method, e, 0, mark)) if reached else "")
    return [f"{e:g}", LABELS[method], *texts]


def _holds(setting: Setting, results: Results, name: str, x: tuple[float, ...]) -> Finding:
    one, texts, lost = once(setting, name), [], []
    for e in x:
        first, fifth, votes = (
            _between(setting, results, name, method, e, *ends)
            for method, ends in (
                ("open", (0, one)),
                ("open", (4 * one, 5 * one)),
                ("votes", (4 * one, 5 * one)),
            )
        )
        lost.append(first - fifth)
        texts.append(f"{points(first)} then {points(fifth)} at ε = {e:g} (Algorithm 3: {points(votes)})")
    return Finding(
        "At five times the queries that Algorithm 3 was tuned for, within a point of what it was at once.",
        f"{setting.title(name)}, the first {one:,} queries and the fifth {one:,}: {'; '.join(texts)}.",
        max(lost) <= ALLOWED,
        by="goal",
    )


def _panel(setting: Setting, results: Results, name: str, e: float) -> Panel:
    curves = []
    for method in ("open", "votes", "noisy_sgd"):
        T = _runs(setting, name, method, e)[0].T
        width = max(_longest(setting, name) // _POINTS // 100, 1) * 100
        ends = list(range(width, T + 1, width))
        y = [_between(setting, results, name, method, e, end - width, end) for end in ends]
        curves.append(Series(LABELS[method], [float(end) for end in ends], y, role=_ROLES[method]))
    for method in ("ridge", "kernel"):
        value = accuracy(results[_ceiling(setting, name, method)], 0, once(setting, name))
        curves.append(Series(LABELS[method], [0.0, float(_longest(setting, name))], [value] * 2, role=_ROLES[method]))
    return Panel(f"{setting.title(name)}, ε = {e:g}", "queries answered", "accuracy along the stream", curves)


ITEM = Item(
    "endless_streams",
    "Queries without end: long streams",
    ("agnews", "cifar10", "fmnist"),
    lambda setting: [*_units(setting)],
    _assemble,
)

"""Figure 3b: privacy cost over a stream of 2,000 queries at equal accuracy, and where the curves cross."""

from __future__ import annotations

from indknn_lab.experiments import alignment
from indknn_lab.experiments.alignment import MOST, Aligned, align, ladder, our_epsilons, our_units, sgd_units
from indknn_lab.experiments.curves import points
from indknn_lab.experiments.outcome import Body, Finding, Item, Panel, Series, Table
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Result, Unit

DATA = ("cifar10", "agnews")
EVERY = (100, 200)
"""Q: a retraining after so many queries."""


def _present(setting: Setting) -> list[str]:
    return [name for name in DATA if setting.has(name)]


def _units(setting: Setting) -> list[Unit]:
    return [u for name in _present(setting) for u in (*our_units(setting, name), *sgd_units(setting, name))]


def _assemble(setting: Setting, results: Results) -> Body:
    panels, tables, findings = [], [], []
    for name in _present(setting):
        aligned = align(setting, results, name)
        at = aligned.ours or alignment.TARGET
        nearest = min(our_units(setting, name), key=lambda u: abs((u.epsilon or 0.0) - at))
        result = results[nearest]
        panels.append(_panel(setting, name, aligned, result, nearest.T))
        steps = ladder(setting, results, name)
        tables.append(_table(setting, name, steps))
        findings += [_crossover(setting, name, aligned, steps), _median(setting, name, nearest, result)]
    return Body(
        panels=panels,
        tables=tables,
        findings=findings,
        notes=[
            NOT_PAID_FOR,
            "The paper aligns to 96.0%, which these features do not allow. Here the accuracy is the one that Ind-KNN "
            f"reaches at ε = {our_epsilons(setting)[-1]:g}, or NoisySGD's best less .003 where that is lower, and each "
            "method is given the ε that it needs for it (a straight line in log ε between the measured medians).",
            "A retraining is priced as one more training with the noise of the first, by privacy loss distributions. "
            "Records that come and go cost Ind-KNN nothing, so its line stays where it is.",
        ],
    )


def _panel(setting: Setting, name: str, aligned: Aligned, result: Result, T: int) -> Panel:
    asked = [float(t) for t in result["asked"]]
    bound = aligned.ours or alignment.TARGET
    curves = [
        Series("Ind-KNN, the promise", [0.0, float(T)], [bound, bound], role="indknn"),
        Series("Ind-KNN, median person", asked, list(result["median_epsilon"]), role="median"),
    ]
    if aligned.sgd is not None:
        for q, role in zip(EVERY, ("noisy_sgd", "noisy_sgd_slow"), strict=True):
            step = q if not setting.quick else max(T * q // alignment.T, 1)
            times = list(range(0, T + 1, step))
            costs = [aligned.retrained(i) for i in range(len(times))]
            curves.append(Series(f"NoisySGD, retrained every {step}", [float(t) for t in times], costs, role=role))
    title = f"{setting.title(name)}, accuracy {points(aligned.accuracy)}"
    return Panel(title, "queries answered", f"ε (δ = {alignment.DELTA:g})", curves, log_y=True)


def _table(setting: Setting, name: str, steps: list[Aligned]) -> Table:
    rows = []
    for a in steps:
        r = a.crossover()
        needs = "more than any tried" if a.sgd is None else f"{'at most ' if a.at_most else ''}{a.sgd:.3g}"
        meet = f"more than {MOST:,}" if r is None else f"{'at least ' if a.at_most else ''}{r:,}"
        rows.append([points(a.accuracy), f"{a.ours:g}", needs, meet])
    columns = [
        "aligned accuracy",
        "ε of Ind-KNN",
        "ε of one training of NoisySGD",
        "retrainings until NoisySGD costs more",
    ]
    return Table(f"{setting.title(name)}: the crossover by aligned accuracy", columns, rows)


def _crossover(setting: Setting, name: str, a: Aligned, steps: list[Aligned]) -> Finding:
    claim = "The privacy loss of NoisySGD meets that of Ind-KNN after six retrainings."
    title, r = setting.title(name), a.crossover()
    if a.ours is None:
        return Finding(claim, f"{title}: Ind-KNN does not reach {points(a.accuracy)}.", None)
    single = "more than any ε tried" if a.sgd is None else f"ε = {a.sgd:.3g}"
    meet = f"at more than {MOST:,} retrainings" if r is None else f"at {r:,} retraining{'s' if r != 1 else ''}"
    found = [c for step in steps if (c := step.crossover()) is not None]
    lowest, highest = min(found, default=0), max(found, default=0)
    gap = a.best_sgd - a.best_ours
    why = (
        f"NoisySGD's best is {gap:+.3f} against Ind-KNN's at T = {alignment.T:,}: these features suit a linear model "
        "better, so it reaches the aligned accuracy with a fraction of the budget, and many retrainings fit into it."
        if gap > 0.01
        else f"The two are close at their best ({gap:+.3f}), as with the paper's features, and NoisySGD gains next to "
        "nothing from more budget; so the crossover hangs on which accuracy is asked for: from "
        f"{highest:,} retrainings at the lowest of the table to {lowest:,} at the highest. Six lies between."
        if lowest <= 6 <= highest
        else f"The two are close at their best ({gap:+.3f}); the crossover hangs on which accuracy is asked for."
    )
    here = (
        f"{title}, aligned to {points(a.accuracy)}: Ind-KNN needs ε = {a.ours:.3g}, one training of NoisySGD {single}; "
        f"the curves meet {meet}."
    )
    return Finding(claim, here, r is not None and 2 <= r <= 20, why)


def _median(setting: Setting, name: str, unit: Unit, result: Result) -> Finding:
    spent = result["median_epsilon"][-1]
    share = result["median_share"]
    return Finding(
        "The median individual privacy loss after 2,000 queries is ε = 1.2 of a promise of 2: much of the budget of "
        "most people is not spent.",
        f"{setting.title(name)}: the median person has spent ε = {spent:.2f} of {unit.epsilon:g} after {unit.T} "
        f"queries, {share:.0%} of B; {result['exhausted']:.0%} can no longer take part.",
        spent < 0.9 * (unit.epsilon or 1.0),
        ""
        if spent < 0.9 * (unit.epsilon or 1.0)
        else "A lower τ asks more people per query: most are near to many queries.",
    )


ITEM = Item(
    "figure3b", "Figure 3b: privacy cost of a stream with retraining, at equal accuracy", DATA, _units, _assemble
)

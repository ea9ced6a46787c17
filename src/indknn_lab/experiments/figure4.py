"""Figure 4: epsilon against accuracy with hashing, on CIFAR-10 and AG News."""

from __future__ import annotations

from math import acos, pi
from statistics import median

from indknn_lab.experiments.curves import series
from indknn_lab.experiments.hashing import BITS, TABLES, accuracy_units, present
from indknn_lab.experiments.outcome import Body, Finding, Item, Panel
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Unit


def _units(setting: Setting) -> list[Unit]:
    return [u for name in present(setting) for L in (None, *TABLES) for u in accuracy_units(setting, name, L)]


def _assemble(setting: Setting, results: Results) -> Body:
    panels, findings = [], []
    for name in present(setting):
        curves = [
            series(
                "indknn" if L is None else f"hash{L}",
                setting.epsilons,
                accuracy_units(setting, name, L),
                results,
                label="exact" if L is None else f"{L} tables",
            )
            for L in (None, *TABLES)
        ]
        T = accuracy_units(setting, name, None)[0].T
        title = f"{setting.title(name)}, T = {T}, b = {BITS[name]}"
        panels.append(Panel(title, "ε (δ = 1e-05)", "accuracy", curves))
        findings += [_matches(setting, results, name), _more_tables(setting, results, name)]
    return Body(panels=panels, findings=findings, notes=[NOT_PAID_FOR])


def _medians(setting: Setting, results: Results, name: str, tables: int | None) -> list[float]:
    return [median(results[u]["accuracies"]) for u in accuracy_units(setting, name, tables)]


def _matches(setting: Setting, results: Results, name: str) -> Finding:
    gaps = [
        h - e
        for h, e in zip(
            _medians(setting, results, name, TABLES[-1]), _medians(setting, results, name, None), strict=True
        )
    ]
    text = ", ".join(f"{g:+.3f} at ε = {e:g}" for g, e in zip(gaps, setting.epsilons, strict=True))
    mean = sum(gaps) / len(gaps)
    return Finding(
        "With 30 tables Ind-KNN-Hash matches the accuracy of Ind-KNN for a wide range of ε.",
        f"{setting.title(name)}: 30 tables less exact: {text}.",
        mean >= -0.01,
        "" if mean >= -0.01 else _misses(setting, results, name),
    )


def _misses(setting: Setting, results: Results, name: str) -> str:
    """How many neighbours at the threshold hashing finds: 1 - (1 - (1 - θ/π)^b)^L for an angle θ."""
    tau = median(results[u]["tau"] for u in accuracy_units(setting, name, None))
    same = (1.0 - acos(tau) / pi) ** BITS[name]
    found = 1.0 - (1.0 - same) ** TABLES[-1]
    return (
        f"Hashing misses neighbours: at the exact search's median threshold, τ = {tau:g}, a record falls into the "
        f"query's bucket in one of {TABLES[-1]} tables of {BITS[name]} bits with probability {found:.0%}."
    )


def _more_tables(setting: Setting, results: Results, name: str) -> Finding:
    means = [sum(_medians(setting, results, name, L)) / len(setting.epsilons) for L in TABLES]
    return Finding(
        "Accuracy increases with the number of hash tables.",
        f"{setting.title(name)}, mean over ε: "
        + ", ".join(f"{m:.3f} with {L}" for m, L in zip(means, TABLES, strict=True))
        + ".",
        means[-1] >= means[0],
        "" if means[-1] >= means[0] else "Differences of this size are within the spread of the test sets.",
    )


ITEM = Item("figure4", "Figure 4: hashing, accuracy", tuple(BITS), _units, _assemble)

"""Appendix: the hyper-parameters that were best, and how τ goes with epsilon."""

from __future__ import annotations

from typing import Any

from indknn_lab.experiments import figure1a, figure2, hashing
from indknn_lab.experiments.outcome import Body, Finding, Item, Panel, Series, Table
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.tradeoff import Tradeoff
from indknn_lab.experiments.units import Unit

PAPER = Table(
    "The paper's best (σ2, τ)",
    ["kernel", "data", "ε = 0.5", "ε = 1", "ε = 1.5", "ε = 2"],
    [
        ["cosine", "CIFAR-10", "0.7, 0.12", "0.4, 0.12", "0.4, 0.12", "0.4, 0.12"],
        ["cosine", "Fashion-MNIST", "1.3, 0.6", "0.6, 0.6", "0.3, 0.6", "0.3, 0.6"],
        ["cosine", "AG News", "0.6, 0.35", "0.4, 0.36", "0.25, 0.37", "0.2, 0.38"],
        ["cosine", "DBpedia", "0.45, 0.35", "0.3, 0.37", "0.2, 0.37", "0.1, 0.38"],
        ["RBF", "CIFAR-10", "0.6, 0.8", "0.5, 0.25", "0.4, 0.26", "0.2, 0.28"],
        ["RBF", "Fashion-MNIST", "1.3, 0.83", "0.7, 0.82", "0.4, 0.84", "0.3, 0.84"],
        ["hash, 30 tables", "CIFAR-10", "0.6, 0.25", "0.4, 0.50", "0.3, 0.52", "0.2, 0.53"],
        ["hash, 30 tables", "AG News", "0.7, 0.35", "0.4, 0.36", "0.25, 0.36", "0.2, 0.36"],
    ],
)


def _tradeoffs(setting: Setting) -> list[Tradeoff]:
    return [t for t in (figure1a.CIFAR, *figure2.PANELS) if setting.has(t.data)]


def _lines(setting: Setting) -> dict[tuple[str, str], list[Unit]]:
    """Units by (kernel, data), all of them shared with the figures."""
    lines: dict[tuple[str, str], list[Unit]] = {}
    for t in _tradeoffs(setting):
        units = t.units(setting)
        lines["cosine", t.data] = units["indknn"]
        if "indknn_rbf" in units:
            lines["RBF", t.data] = units["indknn_rbf"]
    for name in hashing.present(setting):
        lines["hash, 30 tables", name] = hashing.accuracy_units(setting, name, 30)
    return lines


def _units(setting: Setting) -> list[Unit]:
    return [unit for many in _lines(setting).values() for unit in many]


def _assemble(setting: Setting, results: Results) -> Body:
    rows: list[list[Any]] = []
    curves: list[Series] = []
    rising, falling = 0, []
    for (kernel, name), units in _lines(setting).items():
        found = [results[u] for u in units]
        rows.append([kernel, setting.title(name), *(f"{r['sigma2']:g}, {r['tau']:g}" for r in found)])
        taus, sigmas = [r["tau"] for r in found], [r["sigma2"] for r in found]
        curves.append(
            Series(f"{setting.title(name)}, {kernel}", list(setting.epsilons), taus, role=f"line{len(curves)}")
        )
        rising += taus[-1] >= taus[0]
        falling.append(sigmas[-1] <= sigmas[0])
    extended = sorted({note for many in _lines(setting).values() for u in many for note in results[u]["extended"]})
    columns = ["kernel", "data", *(f"ε = {e:g}" for e in setting.epsilons)]
    return Body(
        panels=[Panel("Best threshold by epsilon", "ε", "τ", curves)],
        tables=[Table("Best (σ2, τ) on the validation set", columns, rows)],
        paper=[PAPER],
        findings=[
            Finding(
                "The best τ increases with ε, on all data sets and kernels.",
                f"τ at the largest ε is at least that at the smallest on {rising} of {len(curves)} lines.",
                rising >= len(curves) - 1,
                ""
                if rising >= len(curves) - 1
                else "The accuracy is flat around the best τ: a lower threshold with less noise on the votes does "
                "about as well as a higher one with more, and which of them wins on one validation set is chance.",
            ),
            Finding(
                "In the paper's table the best σ2 falls as ε rises.",
                f"It does on {sum(falling)} of {len(falling)} lines.",
                sum(falling) >= len(falling) - 1,
            ),
        ],
        notes=[
            NOT_PAID_FOR,
            "σ1 = sqrt(T/6B) throughout. τ was first chosen without privacy from .05, .1, ..., .95, then searched "
            "within 0.05 of that in steps of 0.025, with σ2 in 0.1, 0.2, ..., 0.9.",
            "Where the best value sat on an edge the grid was extended: " + (", ".join(extended) or "nowhere") + ".",
            "Thresholds depend on the features and cannot be compared with the paper's; RBF is exp(-|x - q|²/ν²) with "
            "ν² = e^1.5.",
        ],
    )


ITEM = Item(
    "hyperparameters",
    "Appendix: best hyper-parameters, and τ by epsilon",
    ("cifar10", "fmnist", "agnews", "dbpedia"),
    _units,
    _assemble,
)

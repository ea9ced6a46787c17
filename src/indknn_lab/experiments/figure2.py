"""Figure 2: epsilon against accuracy on Fashion-MNIST, AG News and DBpedia."""

from __future__ import annotations

from indknn_lab.experiments.outcome import Body, Finding, Item
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.tradeoff import EXACT, FAIR, Tradeoff
from indknn_lab.experiments.units import Unit

PANELS = (
    Tradeoff("fmnist", 500, rbf=True),
    Tradeoff("agnews", 800),
    Tradeoff("dbpedia", 800, delta=1e-6),
)


def _present(setting: Setting) -> list[Tradeoff]:
    return [panel for panel in PANELS if setting.has(panel.data)]


def _units(setting: Setting) -> list[Unit]:
    return [
        unit
        for panel in _present(setting)
        for many in (*panel.units(setting).values(), panel.plain_units(setting))
        for unit in many
    ]


def _assemble(setting: Setting, results: Results) -> Body:
    present = _present(setting)
    findings: list[Finding] = [panel.beats_private_knn(setting, results) for panel in present]
    findings += [
        panel.against_sgd(
            setting,
            results,
            "On AG News Ind-KNN surpasses or matches Linear NoisySGD for ε of at least 0.5.",
            0.005,
        )
        for panel in present
        if panel.data == "agnews"
    ]
    return Body(
        panels=[panel.panel(setting, results) for panel in present],
        tables=[panel.table(setting, results) for panel in present],
        findings=findings,
        notes=[NOT_PAID_FOR, EXACT, FAIR],
    )


ITEM = Item(
    "figure2",
    "Figure 2: privacy against accuracy on Fashion-MNIST, AG News and DBpedia",
    ("fmnist", "agnews", "dbpedia"),
    _units,
    _assemble,
)

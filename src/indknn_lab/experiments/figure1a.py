"""Figure 1a: epsilon against accuracy of 1,000 queries on CIFAR-10."""

from __future__ import annotations

from statistics import median

from indknn_lab.experiments.curves import points
from indknn_lab.experiments.outcome import Body, Finding, Item
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.tradeoff import EXACT, FAIR, Tradeoff
from indknn_lab.experiments.units import Unit

CIFAR = Tradeoff("cifar10", 1000, rbf=True)


def _units(setting: Setting) -> list[Unit]:
    return [u for many in CIFAR.units(setting).values() for u in many] + CIFAR.plain_units(setting)


def _assemble(setting: Setting, results: Results) -> Body:
    return Body(
        panels=[CIFAR.panel(setting, results)],
        tables=[CIFAR.table(setting, results)],
        findings=[
            CIFAR.beats_private_knn(setting, results),
            _rbf(setting, results),
            CIFAR.against_sgd(
                setting, results, "Both kernels are comparable to Linear NoisySGD across various values of ε.", 0.01
            ),
        ],
        notes=[NOT_PAID_FOR, EXACT, FAIR],
    )


def _rbf(setting: Setting, results: Results) -> Finding:
    units = CIFAR.units(setting)
    pairs = [
        (median(results[a]["accuracies"]), median(results[b]["accuracies"]))
        for a, b in zip(units["indknn_rbf"], units["indknn"], strict=True)
    ]
    above = sum(rbf > cosine for rbf, cosine in pairs)
    mean_gap = sum(rbf - cosine for rbf, cosine in pairs) / len(pairs)
    texts = ", ".join(
        f"{points(rbf)} and {points(cosine)} at ε = {e:g}"
        for (rbf, cosine), e in zip(pairs, setting.epsilons, strict=True)
    )
    return Finding(
        "Ind-KNN with the RBF kernel performs slightly better than with the cosine kernel.",
        f"RBF and cosine: {texts}; RBF is above at {above} of {len(pairs)}, by {mean_gap:+.3f} on average.",
        mean_gap > 0,
        "Both are functions of the same angle, and a difference of this size is within the spread of the test sets."
        if abs(mean_gap) < 0.01
        else "",
    )


ITEM = Item("figure1a", "Figure 1a: privacy against accuracy on CIFAR-10", ("cifar10",), _units, _assemble)

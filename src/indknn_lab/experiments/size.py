"""Appendix: the size of the private set, from 50,000 to 400,000 by replication."""

from __future__ import annotations

from indknn_lab.experiments.curves import series
from indknn_lab.experiments.outcome import Body, Finding, Item, Panel
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Kind, Unit

T, EPSILON = 2000, 1.0
COPIES = (1, 2, 4, 6, 8)
_QUICK = (1, 4)
_KINDS: dict[str, Kind] = {"indknn": "indknn", "private_knn": "private_knn"}


def _copies(setting: Setting) -> tuple[int, ...]:
    return _QUICK if setting.quick else COPIES


def _records(setting: Setting) -> int:
    source = setting.sources["cifar10"][0]
    return setting.unit("plain", "cifar10", T).records or source.private


def _by_role(setting: Setting) -> dict[str, list[Unit]]:
    n = _records(setting)
    return {
        role: [setting.unit(kind, "cifar10", T, EPSILON, copies=c, delta=1.0 / (c * n)) for c in _copies(setting)]
        for role, kind in _KINDS.items()
    }


def _assemble(setting: Setting, results: Results) -> Body:
    units = _by_role(setting)
    x = [float(c * _records(setting)) for c in _copies(setting)]
    curves = {role: series(role, x, many, results) for role, many in units.items()}
    gains = {role: curve.y[-1] - curve.y[0] for role, curve in curves.items()}
    lead = [a - b for a, b in zip(curves["indknn"].y, curves["private_knn"].y, strict=True)]
    title = f"{setting.title('cifar10')}, T = {units['indknn'][0].T}, ε = {EPSILON:g}, δ = 1/N"
    return Body(
        panels=[Panel(title, "private records N", "accuracy", list(curves.values()))],
        findings=[
            Finding(
                "Both Ind-KNN and Private-kNN benefit from more private data.",
                f"From N = {x[0]:,.0f} to {x[-1]:,.0f} Ind-KNN gains {gains['indknn']:+.3f} and Private-kNN "
                f"{gains['private_knn']:+.3f}; the lead of Ind-KNN goes from {lead[0]:+.3f} to {lead[-1]:+.3f}.",
                min(gains.values()) > 0,
            )
        ],
        notes=[
            NOT_PAID_FOR,
            "As in the paper every record is repeated, each copy with an owner of its own. Copies bring no new "
            "information, only more votes against the noise: without privacy the accuracy would not change.",
        ],
    )


ITEM = Item(
    "size",
    "Appendix: size of the private set",
    ("cifar10",),
    lambda setting: [u for many in _by_role(setting).values() for u in many],
    _assemble,
)

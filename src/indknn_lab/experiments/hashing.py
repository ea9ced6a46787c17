"""What Figure 4 and Table 3 share: Ind-KNN-Hash with 10, 20 and 30 tables."""

from __future__ import annotations

from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Unit

BITS = {"cifar10": 8, "agnews": 9}
TABLES = (10, 20, 30)
T = 1000


def present(setting: Setting) -> list[str]:
    """The data sets that are there."""
    return [name for name in BITS if setting.has(name)]


def accuracy_units(setting: Setting, name: str, tables: int | None) -> list[Unit]:
    """Over epsilon; `tables=None` is the exact search."""
    more = {} if tables is None else {"tables": tables, "bits": BITS[name]}
    return [setting.unit("indknn", name, T, e, **more) for e in setting.epsilons]


def timing_unit(setting: Setting, name: str, tables: int | None) -> Unit:
    """Seconds per query."""
    more = {} if tables is None else {"tables": tables, "bits": BITS[name]}
    return setting.unit("timing", name, T, 1.0, method="indknn", **more)

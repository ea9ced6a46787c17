"""Every table and figure of the paper, and the goals for queries without end. Each is an item with an outcome."""

from indknn_lab.experiments.items.ablation import Ablation
from indknn_lab.experiments.items.base import Item, Outcome
from indknn_lab.experiments.items.endless import EndlessChange, EndlessFigures, EndlessStreams, Tables
from indknn_lab.experiments.items.retraining import Figure3a, Figure3b, Figure4, Table1, Table3
from indknn_lab.experiments.items.tradeoff import Figure1a, Figure1b, Figure2, Hyperparameters, Size, Table2

ENDLESS: tuple[type[Item], ...] = (EndlessFigures, EndlessChange, EndlessStreams, Tables)
PAPER: tuple[type[Item], ...] = (
    Table1, Figure1a, Figure1b, Figure2, Figure3a, Figure3b, Figure4, Table2, Table3, Size, Hyperparameters, Ablation,
)  # fmt: skip
ITEMS: dict[str, type[Item]] = {item.name: item for item in (*PAPER, *ENDLESS)}

__all__ = ["ENDLESS", "ITEMS", "Item", "Outcome"]

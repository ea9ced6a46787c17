"""Makes a store to try with `indknn serve` and its console. Two analysts have asked it, and one person has left."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from indknn.errors import InvalidInputError
from indknn.settings import Settings
from indknn.store import Store
from indknn_lab.datasets import FASHION_CLASSES, load_fashion_mini

PEOPLE, ASKED = 5000, {"alice": 300, "bob": 100}
_SHOWN = 5


def make_store(path: Path) -> Path:
    """Make the store, and a file next to it with some queries to paste into the console, and their right answers."""
    if path.exists():
        raise InvalidInputError(f"{path} exists already; remove it, or serve it with indknn serve {path}")
    data = load_fashion_mini()
    names = np.array(FASHION_CLASSES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Store.create(path, Settings(data.X_train.shape[1], FASHION_CLASSES)) as store:
        store.add(data.X_train[:PEOPLE], names[data.y_train[:PEOPLE]], [f"person-{i}" for i in range(PEOPLE)])
        store.declare_public(data.X_test[-1000:])
        low = 0
        for analyst, asked in ASKED.items():
            store.add_analyst(analyst)
            store.predict(data.X_test[low : low + asked], analyst)
            low += asked
        store.forget(["person-17"])
    questions = path.with_suffix(".questions.txt")
    rows = zip(data.X_test[low : low + _SHOWN], names[data.y_test[low : low + _SHOWN]], strict=True)
    questions.write_text("\n\n".join(f"{label}:\n{' '.join(f'{x:.4f}' for x in row)}" for row, label in rows) + "\n")
    return questions

"""Which columns moved an answer of the shared model: what each adds to a number, or to a label's lead in logits.

A column is moved from its average over public rows to its value in the row, one column after the other, and each
gets the change of the lead. The order matters where columns act together, so this is averaged over some orders, each
with its reverse (Shapley values). For every order the changes add up to the whole, and so do their averages.

It uses the released model, public rows and the query. It costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from indknn.core.quantise import LEVELS, unit_rows
from indknn.core.targets import Classes, Number, Target
from indknn.models.shared_model import ShownModel
from indknn.models.shown_numbers import ShownNumbers
from indknn.types import FloatArray, Int8Array

_EVALUATIONS, _MOST_ORDERS = 2048, 32
_BLOCK = 256


@dataclass(frozen=True)
class Explanation:
    """The lead of a label over the next likely one, in logits, and how it came about.

    `lead` = `average` (the lead at the average public row) + the sum of `columns`. If records say numbers, `lead` is
    the number itself, and there is nothing that it is `against`.
    """

    label: Any
    against: Any
    lead: float
    average: float
    columns: dict[str, float]
    """By name, the column that moved the answer most first."""


Score: TypeAlias = Callable[[FloatArray], FloatArray]
"""What is explained, for each row."""


def explained(
    shown: ShownModel | ShownNumbers, row: FloatArray, base: FloatArray, parts: Mapping[str, Any], target: Target
) -> Explanation:
    """Explain one row. `parts` says which coordinates are of which column, and `base` is the average row."""
    if isinstance(shown, ShownModel):
        assert isinstance(target, Classes)
        classes = target.labels.tolist()
        ends = np.log(shown.probabilities(_whole(np.stack([base, row]))))
        order = np.argsort(-ends[1], kind="stable")[:2] if len(classes) > 1 else (0, 0)  # of equal ones the first
        first, second = map(int, order)
        average, lead, columns = _divided(lambda rows: _leads(shown, rows, first, second), row, base, parts)
        return Explanation(classes[first], classes[second], lead, average, columns)
    assert isinstance(target, Number)
    middle, half = 0.5 * (target.low + target.high), 0.5 * (target.high - target.low)
    said = lambda rows: middle + half * shown.scores(_whole(rows))[0][:, 0]  # noqa: E731
    average, number, columns = _divided(said, row, base, parts)
    return Explanation(number, None, number, average, columns)


def _leads(shown: ShownModel, rows: FloatArray, first: int, second: int) -> FloatArray:
    logits = np.log(shown.probabilities(_whole(rows)))
    return np.asarray(logits[:, first] - logits[:, second], dtype=np.float64)


def _divided(
    score: Score, row: FloatArray, base: FloatArray, parts: Mapping[str, Any]
) -> tuple[float, float, dict[str, float]]:
    """The score of the average row and of this one, and what each column adds, the column that adds most first."""
    names = list(parts)
    average, lead = score(np.stack([base, row])).tolist()
    found, rng = np.zeros(len(names)), np.random.default_rng(0)
    orders = int(np.clip(_EVALUATIONS // (2 * len(names)), 1, _MOST_ORDERS))
    for _ in range(orders):
        order = rng.permutation(len(names))
        for way in (order, order[::-1]):
            moved = _moved(score, row, base, [parts[names[i]] for i in way])
            found[way] += np.diff([average, *moved]) / (2 * orders)
    by_size = sorted(range(len(names)), key=lambda i: -abs(found[i]))
    return average, lead, {names[i]: float(found[i]) for i in by_size}


def _moved(score: Score, row: FloatArray, base: FloatArray, parts: list[Any]) -> FloatArray:
    """The score after each of these columns has been moved, one after the other."""
    found, now = np.empty(len(parts)), base.copy()
    for low in range(0, len(parts), _BLOCK):
        rows = np.empty((min(_BLOCK, len(parts) - low), len(row)))
        for i, part in enumerate(parts[low : low + _BLOCK]):
            now[part] = row[part]
            rows[i] = now
        found[low : low + _BLOCK] = score(rows)
    return found


def _whole(rows: FloatArray) -> Int8Array:
    """As `quantise`, but a row of zeros stays."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return np.rint(rows / np.where(largest == 0.0, 1.0, largest) * LEVELS).astype(np.int8)


def average_row(public: Int8Array, row: FloatArray) -> FloatArray:
    """The mean direction of public rows, with the length of the row."""
    if not len(public):
        return np.zeros_like(row)
    mean = unit_rows(public).mean(axis=0, dtype=np.float64)
    return np.asarray(mean * np.sqrt((row * row).sum()), dtype=np.float64)

"""What the paper says about the parts of Ind-KNN: bandwidth, weights, the two noises, hashing, and few queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log, nan
from typing import Any

from indknn_lab.baselines.pricing import epsilon_of, noise_multiplier
from indknn_lab.experiments.data import Unit
from indknn_lab.experiments.items.base import Body, Compared, Finding, Item, Table, ahead, points, spread
from indknn_lab.experiments.items.retraining import TABLES, Table3

DATA, T, EPSILON, DELTA = "cifar10", 1000, 1.0, 1e-5
WIDE = 2.0
"""The epsilon of the paper's table with few queries."""
RETRAININGS = (0, 1, 4, 9, 24, 99)
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's (cosine)": {},
    "equal weights": {"weights": "equal"},
    "noise that does not depend on K": {"noise": "fixed"},
    "σ1 of a half": {"sigma1": 0.5},
    "σ1 of 0.7": {"sigma1": 0.7},
    "σ1 of 1.4": {"sigma1": 1.4},
    "RBF, ν = e^0.5": {"kernel": "rbf", "bandwidth": exp(0.5)},
    "RBF, ν = e^0.75": {"kernel": "rbf", "bandwidth": exp(0.75)},
    "RBF, ν = e^1": {"kernel": "rbf", "bandwidth": exp(1.0)},
    "RBF, ν = e^1.5": {"kernel": "rbf", "bandwidth": exp(1.5)},
}
USUAL = "RBF, ν = e^0.75"
_PLAIN, _EQUAL, _FIXED, _HALF, _LESS, _MORE, *_BANDWIDTHS = VARIANTS
WIDTHS = (6, 8, 10, 12)
FEW: dict[str, tuple[str, dict[str, Any], tuple[float, float]]] = {
    "Linear NoisySGD": ("noisy_sgd", {}, (0.834, 0.834)),
    "Private-kNN": ("private_knn", {}, (0.828, 0.815)),
    "Ind-KNN": ("indknn", {}, (0.843, 0.831)),
    "Ind-KNN-Hash, 12 tables, b = 8": ("indknn", {"tables": 12, "bits": 8}, (0.835, 0.818)),
    "Ind-KNN with reuse": ("indknn_reuse", {}, (0.850, 0.835)),
}
"""The methods of the paper's table of 400 and 800 queries at ε = 2, and its numbers."""
LENGTHS = (400, 800)


class Ablation(Item):
    """The parts of Ind-KNN, one at a time."""

    name = "ablation"
    title = "Ablations: bandwidth, weights, noise, hashing, few queries"

    def lines(self) -> dict[str, list[Unit]]:
        """All units, by what is varied. What an ablation varies wins over `--set`."""
        plain, lengths = self.unit("indknn", DATA, T, EPSILON), (T,) if "T" in self.setting.changed else LENGTHS
        timing = self.setting.unit("timing", DATA, T, EPSILON, method="indknn")
        hashes: list[dict[str, Any]] = [{"tables": TABLES[-1], "bits": b} for b in WIDTHS]
        few = {f"few, {name}": (role, more) for name, (role, more, _) in FEW.items()}
        few |= {f"few, {label}": (role, {}) for role, label in self.setting.roles.items()}
        return {
            **{name: [replace(plain, **changed)] for name, changed in VARIANTS.items()},
            "widths": [replace(plain, **changed) for changed in hashes],
            "times of widths": [replace(timing, **changed) for changed in hashes],
            **{
                name: [replace(self.unit(role, DATA, length, WIDE), **more) for length in lengths]
                for name, (role, more) in few.items()
            },
            "times": Table3(self.setting, self.results).lines()[DATA],
        }

    def body(self) -> Body:
        """Tables of everything, and a verdict on each claim."""
        plain = self.lines()[_PLAIN][0]
        title = f"{self.setting.title(DATA)}, T = {plain.T}, ε = {plain.epsilon:g}, δ = {plain.delta:g}"
        rows = [[name, spread(self._runs(name)), f"{self._against(name)}", self._chosen(name)] for name in VARIANTS]
        columns = ["changed", "median (least to greatest)", "mean less the paper's way", "chosen"]
        parts = Table(f"{title}: Ind-KNN with one part changed", columns, rows)
        findings = [
            self._bandwidth(),
            *self._one_by_one(),
            self._half(),
            self._width(),
            self._linear(),
            self._retraining(),
            *self._few(),
        ]
        return Body([], [parts, self._widths(title), self._few_queries()], findings=findings, notes=self.notes())

    def _few_queries(self) -> Table:
        """The paper's table of few queries, with its numbers beside ours."""
        rows: list[list[Any]] = []
        for name in (*FEW, *self.setting.roles.values()):
            units = self.lines()[f"few, {name}"]
            printed = dict(zip(LENGTHS, FEW[name][2] if name in FEW else (nan, nan), strict=True))
            cells = (
                (points(m), points(printed.get(u.T, nan))) for u, m in zip(units, self.medians(units), strict=True)
            )
            rows.append([name, *(cell for pair in cells for cell in pair)])
        columns = ["method", *(text for u in units for text in (f"{u.T} queries", "in the paper (ResNet-50)"))]
        return Table(f"{self.setting.title(DATA)}: few queries at ε = {units[0].epsilon:g}", columns, rows)

    def _runs(self, name: str) -> list[float]:
        return self.accuracies(self.lines()[name][0])

    def _chosen(self, name: str) -> str:
        result = self.results[self.lines()[name][0]]
        return f"σ2 = {result['sigma2']:g}, τ = {result['tau']:g}"

    def _against(self, name: str) -> Compared:
        """A variant less the paper's way."""
        return Compared.of(self._runs(name), self._runs(_PLAIN))

    def _bandwidth(self) -> Finding:
        usual, *others = sorted(_BANDWIDTHS, key=lambda name: name != USUAL)  # the best of them would be best by chance
        compared = {name: Compared.of(self._runs(name), self._runs(usual)) for name in others}
        text = ", ".join(f"{name}: {pair}" for name, pair in compared.items())
        alike = all(pair.ahead is None for pair in compared.values())
        return Finding.of("ablation.bandwidth", alike, usual=usual, listed=text)

    def _one_by_one(self) -> list[Finding]:
        fixed, equal = self._against(_FIXED), self._against(_EQUAL)
        less = {name: self._against(name) for name in (_HALF, _LESS)}
        listed = ", ".join(f"{name}: {pair}" for name, pair in less.items())
        return [
            Finding.of("ablation.fixed", _opposite(fixed.ahead), fixed=fixed),
            Finding.of("ablation.equal", _opposite(equal.ahead), equal=equal),
            Finding.of("ablation.less", all(pair.ahead is not True for pair in less.values()), listed=listed),
        ]

    def _half(self) -> Finding:
        """T counts at σ1² = T/6B cost 3B, so somebody who is near a share s of the queries pays 3sB for counts."""
        unit = self.lines()[_PLAIN][0]
        records = unit.records or self.setting.sources[DATA][0].private
        result = self.results[unit]
        share = 3.0 * result["neighbours"] / records / unit.sigma1**2
        return Finding.of("ablation.half", 0.25 <= share <= 0.75, records=records, share=share, **result)

    def _widths(self, title: str) -> Table:
        lines = self.lines()
        rows = [
            [f"b = {u.bits}", spread(self.accuracies(u)), f"{1e3 * self.results[timed]['per_query_alone']:.2f} ms"]
            for u, timed in zip(lines["widths"], lines["times of widths"], strict=True)
        ]
        columns = ["width (the paper's: b = 8)", "accuracy", "time per query, one at a time"]
        return Table(f"{title}: {TABLES[-1]} hash tables of b bits", columns, rows)

    def _width(self) -> Finding:
        lines = self.lines()
        sets = [self.accuracies(unit) for unit in lines["widths"]]
        falls = [Compared.of(narrow, wide) for narrow, wide in pairwise(sets)]
        times = [self.results[unit]["per_query_alone"] for unit in lines["times of widths"]]
        texts = (f"b = {a} less b = {b}: {pair}" for (a, b), pair in zip(pairwise(WIDTHS), falls, strict=True))
        slower = ", ".join(f"{1e3 * t:.2f} ms with {b}" for t, b in zip(times, WIDTHS, strict=True))
        accurate = ahead([*falls, Compared.of(sets[0], sets[-1])])
        agrees = accurate and times[0] > times[-1]
        return Finding.of("ablation.width", agrees, listed=", ".join(texts), slower=slower)

    def _linear(self) -> Finding:
        times = [self.results[unit]["per_query_alone"] for unit in self.lines()["times"][: len(TABLES)]]
        steps = [later - earlier for earlier, later in pairwise(times)]
        about = {
            "times": ", ".join(f"{1e3 * t:.2f} ms with {L}" for t, L in zip(times, TABLES, strict=True)),
            "steps": " and ".join(f"{1e3 * s:.2f}" for s in steps),
        }
        power = _slope(list(map(float, TABLES)), times)
        return Finding.of("ablation.linear", min(steps) > 0 and max(steps) <= 2.0 * min(steps), power=power, **about)

    def _retraining(self) -> Finding:
        rate, epochs = min(256 / self.setting.records(self.setting.sources[DATA][0]), 1.0), 10
        steps = round(epochs / rate)
        z = noise_multiplier(EPSILON, DELTA, rate=rate, steps=steps)
        costs = [epsilon_of(z, DELTA, rate=rate, steps=steps * (1 + r)) for r in RETRAININGS]
        trainings = [1.0 + r for r in RETRAININGS]
        power, late = _slope(trainings, costs), _slope(trainings[-2:], costs[-2:])
        listed = ", ".join(f"{e:.2f} after {t:.0f}" for e, t in zip(costs, trainings, strict=True))
        return Finding.of("ablation.retraining", 0.4 <= power <= 0.65, listed=listed, power=power, late=late)

    def _few(self) -> list[Finding]:
        sgd, knn, ours, hashed, reuse = (self.lines()[f"few, {name}"] for name in FEW)
        by = [f"{unit.T} queries" for unit in ours]
        helps, against, over = self.pairs(reuse, ours), self.pairs(ours, sgd), self.pairs(ours, knn)
        hash_sgd = self.pairs(hashed, sgd)
        few = ahead([against[0], *over]) if against[-1].level else False
        return [
            Finding.of("ablation.reuse", ahead(helps), listed=_listed(helps, by)),
            Finding.of("ablation.few", few, sgd=_listed(against, by), knn=_listed(over, by)),
            Finding.of("ablation.hashed", hash_sgd[0].level, listed=_listed(hash_sgd, by)),
        ]


def _opposite(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def _listed(compared: Sequence[Compared], by: Sequence[str]) -> str:
    return ", ".join(f"{pair} at {name}" for pair, name in zip(compared, by, strict=True))


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The power p of y ~ x^p, by least squares of logarithms.

    >>> round(_slope([1.0, 4.0, 16.0], [3.0, 6.0, 12.0]), 3)
    0.5
    """
    u, v = [log(a) for a in x], [log(b) for b in y]
    middle_u, middle_v = sum(u) / len(u), sum(v) / len(v)
    top = sum((a - middle_u) * (b - middle_v) for a, b in zip(u, v, strict=True))
    return top / sum((a - middle_u) ** 2 for a in u)

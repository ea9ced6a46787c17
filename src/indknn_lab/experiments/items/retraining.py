"""Time and retraining: hashing (Figure 4, Table 3), seconds per query (Figure 3a), and the cost of retraining at equal
accuracy (Table 1, Figure 3b)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import acos, inf, isinf, pi
from statistics import mean, median
from typing import Any, ClassVar

from indknn_lab.baselines.pricing import epsilon_of, noise_multiplier
from indknn_lab.experiments.data import Result, Unit
from indknn_lab.experiments.items.base import (
    Body,
    Compared,
    Finding,
    Item,
    Panel,
    Series,
    Table,
    first_reaching,
    points,
)

BITS = {"cifar10": 8, "agnews": 9}
TABLES = (10, 20, 30)
T = 1000


def _hashed(name: str, tables: int | None) -> dict[str, Any]:
    return {} if tables is None else {"tables": tables, "bits": BITS[name]}


class Figure4(Item):
    """Accuracy over epsilon with 10, 20 and 30 hash tables."""

    name = "figure4"
    title = "Figure 4: hashing, accuracy"
    needs = tuple(BITS)
    varies = ("tables", "bits")

    def line(self, name: str, tables: int | None) -> list[Unit]:
        """The units over epsilon. `tables=None` is the exact search."""
        more = _hashed(name, tables)
        return [self.setting.unit("indknn", name, T, e, **more) for e in self.setting.epsilons]

    def lines(self) -> dict[tuple[str, int | None], list[Unit]]:
        """All units, by data set and number of hash tables."""
        return {(name, L): self.line(name, L) for name in self.present for L in (None, *TABLES)}

    def body(self) -> Body:
        """One panel for each data set."""
        panels, findings, x = [], [], self.setting.epsilons
        for name in self.present:
            curves = [self.series("indknn", x, self.line(name, None), label="exact")]
            curves += [self.series(f"hash{L}", x, self.line(name, L), label=f"{L} tables") for L in TABLES]
            title = f"{self.setting.title(name)}, T = {self.line(name, None)[0].T}, b = {BITS[name]}"
            panels.append(Panel(title, "ε (δ = 1e-05)", "accuracy", curves))
            findings += [self._matches(name), self._more_tables(name)]
        return Body(panels, findings=findings, notes=self.notes())

    def _matches(self, name: str) -> Finding:
        exact = self.line(name, None)
        compared = self.pairs(self.line(name, TABLES[-1]), exact)
        # A record at an angle θ is found with probability 1 - (1 - (1 - θ/π)^b)^L.
        tau = median(self.results[u]["tau"] for u in exact)
        found = 1.0 - (1.0 - (1.0 - acos(tau) / pi) ** BITS[name]) ** TABLES[-1]
        title, listed = self.setting.title(name), self.by_epsilon(compared)
        about = {"tau": tau, "tables": TABLES[-1], "bits": BITS[name], "found": found}
        return Finding.of("figure4.matches", all(c.level for c in compared), title=title, listed=listed, **about)

    def _more_tables(self, name: str) -> Finding:
        sets = [[mean(one) for one in zip(*map(self.accuracies, self.line(name, L)), strict=True)] for L in TABLES]
        text = ", ".join(f"{mean(many):.3f} with {L}" for many, L in zip(sets, TABLES, strict=True))
        compared = Compared.of(sets[-1], sets[0])
        about = {"title": self.setting.title(name), "most": TABLES[-1], "least": TABLES[0]}
        return Finding.of("figure4.more_tables", compared.ahead, listed=text, compared=compared, **about)


class Table3(Item):
    """Time per query with hashing."""

    name = "table3"
    title = "Table 3: hashing, time per query"
    needs = tuple(BITS)
    varies = ("tables", "bits")
    paper: ClassVar[dict[str, tuple[float, ...]]] = {
        "cifar10": (0.02, 0.03, 0.04, 0.25),
        "agnews": (0.01, 0.02, 0.03, 0.29),
    }

    def lines(self) -> dict[str, list[Unit]]:
        """For each data set, units with three numbers of hash tables and with the exact search."""
        ways, unit = (*TABLES, None), self.setting.unit
        return {n: [unit("timing", n, T, 1.0, method="indknn", **_hashed(n, L)) for L in ways] for n in self.present}

    def body(self) -> Body:
        """The table, with the paper's numbers."""
        rows, findings = [], []
        for name, units in self.lines().items():
            times = [self.results[unit] for unit in units]
            for key, how in (("per_query", "in batches"), ("per_query_alone", "one at a time")):
                rows.append([self.setting.title(name), how, *(f"{1e3 * t[key]:.2f} ms" for t in times)])
            rows.append(["", "in the paper", *(f"{1e3 * seconds:.0f} ms" for seconds in self.paper[name])])
            findings.append(self._speedup(name, [t["per_query_alone"] for t in times]))
        columns = ["data", "asked", *(f"{L} tables" for L in TABLES), "exact"]
        return Body([], [Table("Time per query", columns, rows)], findings=findings, notes=self.notes())

    def _speedup(self, name: str, seconds: list[float]) -> Finding:
        theirs = self.paper[name]
        ratios, printed = ([times[-1] / s for s in times[:-1]] for times in (seconds, theirs))
        agrees, title = ratios[-1] >= 0.5 * printed[-1], self.setting.title(name)
        last = {"ours": 1e3 * seconds[-1], "theirs": 1e3 * theirs[-1]}
        return Finding.of("table3.speedup", agrees, title=title, printed=printed, ratios=ratios, **last)


class Figure3a(Item):
    """Computing time per query over the frequency of retraining."""

    name = "figure3a"
    title = "Figure 3a: computing time against the frequency of retraining"
    varies = ("tables", "bits")
    frequencies = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)

    def lines(self) -> dict[str, list[Unit]]:
        """Units that measure one training and one answer of each method."""
        hashed = {"method": "indknn", **_hashed("cifar10", TABLES[-1])}
        ways: dict[str, Any] = {"noisy_sgd": {"method": "noisy_sgd"}, "indknn": {"method": "indknn"}, "hash": hashed}
        return {role: [self.setting.unit("timing", "cifar10", T, 1.0, **way)] for role, way in ways.items()}

    def body(self) -> Body:
        """The curves, and where they cross."""
        times = {role: self.results[unit] for role, (unit,) in self.lines().items()}
        training, answer = times["noisy_sgd"]["training"], times["noisy_sgd"]["per_query"]
        ours, x = times["indknn"], [float(q) for q in self.frequencies]
        flat = {
            "indknn": ("Ind-KNN, in batches", ours["per_query"]),
            "hash": (f"Ind-KNN, hashing with {TABLES[-1]} tables, in batches", times["hash"]["per_query"]),
            "indknn_alone": ("Ind-KNN, one at a time", ours["per_query_alone"]),
        }
        curves = [Series("Linear NoisySGD", x, [training / q + answer for q in x], role="noisy_sgd")]
        curves += [Series(label, x, [seconds] * len(x), role=role) for role, (label, seconds) in flat.items()]
        title, xlabel = f"{self.setting.title('cifar10')}, one core", "Q: retraining after every Q queries"
        # nothing but changes of records could make the cost of Ind-KNN depend on Q, even for the least Q
        constant = ours["change"] / x[0] < 0.1 * ours["per_query_alone"] and training / x[0] > answer
        spent = {"answer": 1e3 * ours["per_query"], "change": 1e3 * ours["change"]}
        queries = training / ours["per_query"]
        finding = Finding.of("figure3a.constant", constant, training=training, queries=queries, Q=x[0], **spent)
        panel = Panel(title, xlabel, "seconds per query", curves, log_x=True, log_y=True)
        return Body([panel], findings=[finding], notes=self.notes())


QUERIES = 2000
DELTA = 1e-5
TARGET = 2.0
"""The epsilon of Ind-KNN in the paper's Table 1."""
SIX = 6
"""The number of retrainings after which the curves of the paper meet."""
MOST = 10_000
"""The largest number of retrainings in the search for a crossover."""
_MARGIN = 0.003
_POWER = 0.55


@dataclass(frozen=True)
class Aligned:
    """An accuracy, the epsilons at which the methods reach it, and the cost of NoisySGD after r retrainings.

    `ours` or `sgd` is infinite if the method does not reach the accuracy at any epsilon that was tried. `at_most` is
    true if NoisySGD reaches it at the least epsilon that was tried. Then it needs that epsilon or less.
    """

    accuracy: float
    ours: float
    sgd: float
    best_ours: float
    best_sgd: float
    at_most: bool
    retrained: Callable[[int], float]

    def crossover(self) -> int | None:
        """The least number of retrainings after which NoisySGD costs more than Ind-KNN. None if there is none.

        The cost is about a power of the number of trainings, so each value that is computed shows where to look next.
        """
        low, high, probe, cost = 0, MOST, 0, self.retrained(0)
        if isinf(self.ours):
            return None
        if cost > self.ours:
            return 0
        while high - low > 1:
            guess = round((1 + probe) * (self.ours / cost) ** (1.0 / _POWER)) - 1
            probe = min(max(guess, low + 1), high - 1)
            cost = self.retrained(probe)
            low, high = (probe, high) if cost <= self.ours else (low, probe)
        return high if high < MOST else None


class AlignedItem(Item):
    """An item that compares methods at equal accuracy: that of the medians, or that of one test set."""

    varies = ("epsilon", "delta", "T")

    def line(self, role: str, data: str, full: tuple[float, ...], quick: tuple[float, ...], **more: Any) -> list[Unit]:
        """The units of one method over epsilon."""
        return [self.unit(role, data, QUERIES, e, **more) for e in (quick if self.setting.quick else full)]

    def ours(self, data: str) -> list[Unit]:
        """The units of Ind-KNN."""
        return self.line("indknn", data, (0.25, 0.5, 1.0, 2.0), (1.0, 2.0))

    def sgd(self, data: str) -> list[Unit]:
        """The units of NoisySGD, on the same test sets."""
        full = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 4.0)
        return self.line("noisy_sgd", data, full, (0.1, 0.5, 2.0))

    def levels(self, units: list[Unit], test: int | None) -> list[float]:
        """The accuracy of each unit: the median, or that on one test set."""
        return self.medians(units) if test is None else [self.accuracies(unit)[test] for unit in units]

    def reaching(self, units: list[Unit], level: float, test: int | None = None) -> float:
        """The epsilon at which these units reach an accuracy. Infinite if they do not."""
        return first_reaching([unit.promise[0] for unit in units], self.levels(units, test), level)

    def align(self, data: str, test: int | None = None) -> Aligned:
        """Compare at the accuracy of Ind-KNN at epsilon = 2, or slightly below NoisySGD's best if that is less."""
        best = self.levels(self.ours(data), test)[-1]
        level = min(best, max(self.levels(self.sgd(data), test)) - _MARGIN)
        ours = TARGET if level == best else self.reaching(self.ours(data), level, test)
        return self.aligned(data, level, ours, test)

    def one_by_one(self, data: str) -> list[Aligned]:
        """The same comparison on every test set alone. How much the outcomes differ is the tolerance of verdicts."""
        return [self.align(data, test) for test in range(self.setting.effort.sets)]

    def aligned(self, data: str, level: float, ours: float, test: int | None = None) -> Aligned:
        """Compare at this accuracy, which Ind-KNN reaches at epsilon = `ours`."""
        sgd, needed = self.levels(self.sgd(data), test), self.reaching(self.sgd(data), level, test)
        trained = self.results[self.sgd(data)[0]]
        rate, steps = trained["sampling_rate"], trained["steps"]

        def retrained(r: int) -> float:
            if isinf(needed):
                return inf
            z = noise_multiplier(needed, DELTA, rate=rate, steps=steps)
            return epsilon_of(z, DELTA, rate=rate, steps=steps * (1 + r))

        best = max(self.levels(self.ours(data), test))
        return Aligned(level, ours, needed, best, max(sgd), sgd[0] >= level, retrained)


class Table1(AlignedItem):
    """Computing time and epsilon at equal accuracy, with a retraining after every 100 of 2,000 queries."""

    name = "table1"
    title = "Table 1: time and privacy at equal accuracy"
    retrainings = 20
    columns = ("", "NoisySGD", "NoisySGD, retrained", "Private-kNN", "Ind-KNN", "Ind-KNN, hashing")
    paper = ((8, 160, 120, 250, 40), (1.5, 6.2, 4.1, 2.0, 3.2))
    """The paper's milliseconds per query and epsilons, with ViT features and an accuracy of 96.0%."""

    def rival(self) -> list[Unit]:
        """The units of Private-kNN."""
        return self.line("private_knn", "cifar10", (1.0, 2.0, 4.0, 8.0, 16.0), (2.0, 8.0))

    def hashed(self) -> list[Unit]:
        """The units of Ind-KNN-Hash."""
        more = {"tables": TABLES[-1], "bits": BITS["cifar10"]}
        return self.line("indknn", "cifar10", (1.0, 2.0, 4.0, 8.0), (2.0, 8.0), **more)

    def timings(self) -> dict[str, list[Unit]]:
        """The timings of Figure 3a, and those of Private-kNN."""
        rival = self.setting.unit("timing", "cifar10", 1000, 1.0, method="private_knn")
        return Figure3a(self.setting, self.results).lines() | {"private_knn": [rival]}

    def lines(self) -> dict[str, list[Unit]]:
        """Four methods over epsilon, and timings."""
        ours, sgd = self.ours("cifar10"), self.sgd("cifar10")
        known = {"ours": ours, "sgd": sgd, "rival": self.rival(), "hashed": self.hashed(), **self.timings()}
        return known | {role: self.line(role, "cifar10", (1.0, 2.0, 4.0, 8.0), (2.0, 8.0)) for role in self.own}

    def body(self) -> Body:
        """The table, with the paper's numbers."""
        a = self.align("cifar10")
        queries = self.ours("cifar10")[0].T
        times = {role: self.results[unit] for role, (unit,) in self.timings().items()}
        training = times["noisy_sgd"]["training"] / queries
        answers = [times[role]["per_query"] for role in ("private_knn", "indknn", "hash")]
        seconds = [training, self.retrainings * training, *answers]
        rival, hashed = (self.reaching(units, a.accuracy) for units in (self.rival(), self.hashed()))
        retrained = a.retrained(self.retrainings)
        texts = [_text(rival, self.rival()), f"{a.ours:.3g}", _text(hashed, self.hashed())]
        name, accuracy = self.setting.title("cifar10"), points(a.accuracy)
        own = [_text(self.reaching(self.lines()[role], a.accuracy), self.lines()[role]) for role in self.own]
        rows = [["milliseconds per query", *(f"{1e3 * s:.2f}" for s in seconds), *("–" for _ in own)]]
        rows += [["epsilon", f"{a.sgd:.3g}", f"{retrained:.3g}", *texts, *own]]
        for at, printed in zip((1, 3), self.paper, strict=True):
            rows.insert(at, ["in the paper (ViT, aligned to 96.0%)", *map(str, printed), *("–" for _ in own)])
        columns = [*self.columns, *self.setting.roles.values()]
        table = Table(f"{name}: T = {queries}, accuracy aligned to {accuracy}, delta = {DELTA:g}", columns, rows)
        known = {"ours": texts[1], "target": TARGET}
        behind = [self._ours_less(units) for units in (self.rival(), self.hashed())]
        findings = [
            Finding.of("table1.private_knn", behind[0].ahead, rival=texts[0], behind=behind[0], **known),
            Finding.of("table1.hashed", behind[1].ahead, hashed=texts[2], behind=behind[1], **known),
            self._retraining(a, retrained),
            self._time(seconds),
        ]
        return Body([], [table], findings=findings, notes=self.notes())

    def _ours_less(self, units: list[Unit]) -> Compared:
        """Ind-KNN less another method at the epsilon of Ind-KNN. If it is above there, the other one needs more."""
        other = next(unit for unit in units if unit.epsilon == TARGET)
        return self.pairs(self.ours("cifar10")[-1:], [other])[0]

    def _retraining(self, a: Aligned, retrained: float) -> Finding:
        r = a.crossover()
        each = [(one.retrained(self.retrainings), one.ours) for one in self.one_by_one("cifar10")]
        more = [cost > ours for cost, ours in each]
        about = {"a": a, "best_sgd": points(a.best_sgd), "best_ours": points(a.best_ours), "retrained": retrained}
        about |= {"least": min(each)[0], "most": max(each)[0], "r": "no number of" if r is None else r}
        agrees = more[0] if len(set(more)) == 1 else None
        return Finding.of("table1.retraining", agrees, retrainings=self.retrainings, **about)

    def _time(self, seconds: list[float]) -> Finding:
        ratios = [f"{name} {s / seconds[3]:.2g}" for name, s in zip(self.columns[1:], seconds, strict=True)]
        return Finding.of("table1.time", seconds[1] < seconds[3], listed=", ".join(ratios))


def _text(epsilon: float, units: list[Unit]) -> str:
    return f"more than {units[-1].epsilon:g}" if isinf(epsilon) else f"{epsilon:.3g}"


class Figure3b(AlignedItem):
    """Privacy cost over a stream of 2,000 queries at equal accuracy, and where the curves cross."""

    name = "figure3b"
    title = "Figure 3b: privacy cost of a stream with retraining, at equal accuracy"
    needs = ("cifar10", "agnews")
    every = (("noisy_sgd", 100), ("noisy_sgd_slow", 200))
    """After how many queries the model is retrained, by role."""

    def lines(self) -> dict[str, list[Unit]]:
        """For each data set, the units of two methods over epsilon."""
        return {name: [*self.ours(name), *self.sgd(name)] for name in self.present}

    def body(self) -> Body:
        """A panel and a table for each data set."""
        panels, tables, findings = [], [], []
        for name in self.present:
            a, ours = self.align(name), self.ours(name)
            nearest = min(ours, key=lambda unit: abs(unit.promise[0] - min(a.ours, TARGET)))
            panels.append(self._panel(name, a, self.results[nearest], nearest.T))
            steps = [self.aligned(name, y, u.promise[0]) for u, y in zip(ours, self.medians(ours), strict=True)]
            tables.append(self._table(name, steps))
            findings += [self._crossover(name, a, steps), self._median(name, nearest)]
        return Body(panels, tables, findings=findings, notes=self.notes(target=TARGET))

    def _panel(self, name: str, a: Aligned, result: Result, length: int) -> Panel:
        asked, bound = [float(t) for t in result["asked"]], min(a.ours, TARGET)
        curves = [
            Series("Ind-KNN, the promise", [0.0, float(length)], [bound, bound], role="indknn"),
            Series("Ind-KNN, median person", asked, list(result["median_epsilon"]), role="median"),
        ]
        for role, q in () if isinf(a.sgd) else self.every:
            step = max(length * q // QUERIES, 1) if self.setting.quick else q
            times = [float(t) for t in range(0, length + 1, step)]
            costs = [a.retrained(i) for i in range(len(times))]
            curves.append(Series(f"NoisySGD, retrained every {step}", times, costs, role=role))
        title = f"{self.setting.title(name)}, accuracy {points(a.accuracy)}"
        return Panel(title, "queries answered", f"ε (δ = {DELTA:g})", curves, log_y=True)

    def _table(self, name: str, steps: list[Aligned]) -> Table:
        rows: list[list[Any]] = []
        for a in steps:
            r = a.crossover()
            needs = "more than any tried" if isinf(a.sgd) else f"{'at most ' if a.at_most else ''}{a.sgd:.3g}"
            meet = f"more than {MOST:,}" if r is None else f"{'at least ' if a.at_most else ''}{r:,}"
            rows.append([points(a.accuracy), f"{a.ours:g}", needs, meet])
        rows += [["in the paper (ViT): .960", "2", "1.5", "6"]] if name == "cifar10" else []
        columns = ["aligned accuracy", "ε of Ind-KNN", "ε of one training of NoisySGD"]
        columns += ["retrainings until NoisySGD costs more"]
        return Table(f"{self.setting.title(name)}: the crossover by aligned accuracy", columns, rows)

    def _crossover(self, name: str, a: Aligned, steps: list[Aligned]) -> Finding:
        title, r, accuracy = self.setting.title(name), a.crossover(), points(a.accuracy)
        if isinf(a.ours):
            return Finding.of("figure3b.unreached", None, title=title, accuracy=accuracy)
        each = self.one_by_one(name)
        costs = sorted(one.retrained(SIX) for one in each)
        near = any(one.retrained(SIX) > one.ours for one in each) and any(
            one.retrained(SIX - 1) <= one.ours for one in each
        )
        found = [c for step in steps if (c := step.crossover()) is not None]
        lowest, highest, gap = min(found, default=0), max(found, default=0), a.best_sgd - a.best_ours
        reason = "better" if gap > 0.01 else "between" if lowest <= SIX <= highest else "close"
        single = "more than any ε tried" if isinf(a.sgd) else f"ε = {a.sgd:.3g}"
        meet = f"at more than {MOST:,} retrainings" if r is None else f"at {r:,} retraining{'s' if r != 1 else ''}"
        about = {"title": title, "accuracy": accuracy, "ours": a.ours, "least": costs[0], "most": costs[-1]}
        about |= {"gap": gap, "T": QUERIES, "lowest": lowest, "highest": highest}
        return Finding.of(f"figure3b.crossover, {reason}", near, single=single, meet=meet, **about)

    def _median(self, name: str, unit: Unit) -> Finding:
        result, epsilon = self.results[unit], unit.promise[0]
        spent = result["median_epsilon"][-1]
        title, agrees = self.setting.title(name), result["median_share"] <= 0.5
        return Finding.of("figure3b.median", agrees, title=title, spent=spent, epsilon=epsilon, T=unit.T, result=result)

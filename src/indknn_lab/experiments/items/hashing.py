"""Hashing and time: Figure 4 (accuracy of Ind-KNN-Hash), Table 3 and Figure 3a (seconds per query)."""

from __future__ import annotations

from math import acos, pi
from statistics import mean, median
from typing import Any, ClassVar

from indknn_lab.experiments.items.base import Body, Compared, Finding, Item, Panel, Series, Table
from indknn_lab.experiments.methods.base import NOT_PAID_FOR
from indknn_lab.experiments.units import Unit

BITS = {"cifar10": 8, "agnews": 9}
TABLES = (10, 20, 30)
T = 1000
SECONDS = (
    "Seconds of the process on one core, the shortest of seven rounds, on the machine that ran this. On other machines "
    "only the ratios are comparable. The paper used a GPU for training and Python loops over the store."
)


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
        return Body(panels, findings=findings, notes=[NOT_PAID_FOR])

    def _matches(self, name: str) -> Finding:
        exact = self.line(name, None)
        compared = self.pairs(self.line(name, TABLES[-1]), exact)
        # A record at an angle θ is found with probability 1 - (1 - (1 - θ/π)^b)^L.
        tau = median(self.results[u]["tau"] for u in exact)
        found = 1.0 - (1.0 - (1.0 - acos(tau) / pi) ** BITS[name]) ** TABLES[-1]
        return Finding.explained(
            "With 30 tables Ind-KNN-Hash matches the accuracy of Ind-KNN for a wide range of ε.",
            f"{self.setting.title(name)}: 30 tables less exact: {self.by_epsilon(compared)}.",
            all(c.level for c in compared),
            f"Hashing misses neighbours: at the exact search's median threshold, τ = {tau:g}, a record falls into the "
            f"query's bucket in one of {TABLES[-1]} tables of {BITS[name]} bits with probability {found:.0%}.",
        )

    def _more_tables(self, name: str) -> Finding:
        sets = [[mean(one) for one in zip(*map(self.accuracies, self.line(name, L)), strict=True)] for L in TABLES]
        text = ", ".join(f"{mean(many):.3f} with {L}" for many, L in zip(sets, TABLES, strict=True))
        compared = Compared.of(sets[-1], sets[0])
        return Finding.explained(
            "Accuracy increases with the number of hash tables.",
            f"{self.setting.title(name)}, mean over ε: {text}. {TABLES[-1]} tables less {TABLES[0]}: {compared}.",
            compared.ahead,
            "The search finds a lower τ for fewer tables, which makes up for neighbours that hashing misses.",
        )


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
        return Body([], [Table("Time per query", columns, rows)], findings=findings, notes=[SECONDS])

    def _speedup(self, name: str, seconds: list[float]) -> Finding:
        theirs = self.paper[name]
        ratios, printed = ([times[-1] / s for s in times[:-1]] for times in (seconds, theirs))
        return Finding.explained(
            f"Hashing is {printed[0]:.0f}, {printed[1]:.0f} and {printed[2]:.0f} times as fast as Ind-KNN with 10, 20 "
            "and 30 tables.",
            f"{self.setting.title(name)}: {ratios[0]:.1f}, {ratios[1]:.1f} and {ratios[2]:.1f} times, asked one at a "
            "time.",
            ratios[-1] >= 0.5 * printed[-1],
            f"The exact search takes {1e3 * seconds[-1]:.2f} ms here against {1e3 * theirs[-1]:.0f} ms in the paper: a "
            "compiled scan of int8 vectors leaves hashing little to save, and the filter itself takes its time either "
            "way.",
        )


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
        finding = Finding(
            "The cost per query of Ind-KNN is constant, that of NoisySGD grows with every retraining.",
            f"A training takes {training:.2f} s, an answer of Ind-KNN {1e3 * ours['per_query']:.2f} ms, and adding or "
            f"forgetting a person {1e3 * ours['change']:.2f} ms. NoisySGD is the cheaper one if it retrains less than "
            f"once in {training / ours['per_query']:,.0f} queries.",
            # nothing but changes of records could make the cost of Ind-KNN depend on Q, even for the least Q
            ours["change"] / x[0] < 0.1 * ours["per_query_alone"] and training / x[0] > answer,
            f"The verdict is about Q = {x[0]:.0f}: a change has to cost less than a tenth of {x[0]:.0f} answers.",
        )
        panel = Panel(title, xlabel, "seconds per query", curves, log_x=True, log_y=True)
        return Body([panel], findings=[finding], notes=[SECONDS])

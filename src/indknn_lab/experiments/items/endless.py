"""Items for queries without end: models, long streams, records that come and go.

Their goals are goals of this package, not claims of the paper.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from math import isnan, nan
from statistics import median
from typing import Any, ClassVar

from indknn.errors import InvalidInputError
from indknn_lab.experiments.data import Part, Result, Trial, Unit
from indknn_lab.experiments.items.base import Body, Finding, Item, Panel, Series, Table, points, spread
from indknn_lab.experiments.methods import METHODS
from indknn_lab.experiments.methods.endless import EVERY, JITTER, KEPT, distinct

_SHOWN = {
    "open": ("Ind-KNN", "ours"),
    "model": ("the shared model alone", "model"),
    "votes": ("votes alone (Algorithm 3)", "votes"),
    "private_knn": ("Private-kNN", "knn"),
    "noisy_sgd": ("NoisySGD, trained once", "sgd"),
    "noisy_sgd_retrained": ("NoisySGD, retrained every 100 queries", "sgd_retrained"),
    "ridge": ("ridge regression, no privacy", "ceiling"),
    "kernel": ("kernel vote, no privacy", "ceiling_kernel"),
}
LABELS = {method: label for method, (label, _) in _SHOWN.items()}
_ROLES = {method: role for method, (_, role) in _SHOWN.items()}
MOST, LONGEST = 10_000, 100_000
"""The number of queries in a usual stream, if there are enough distinct ones, and in a long stream."""
_QUICK_T, _QUICK_LONGEST = 400, 2500
Shown = tuple[list[Panel], list[Table], list[Finding]]


def accuracy(result: Result, start: int, stop: int) -> float:
    """The accuracy on queries `start` to `stop`. Both must be multiples of a block, or the end of the stream."""
    block, right = result["block"], result["right"]
    asked = min(stop, result["length"]) - start
    return float(sum(right[start // block : -(-stop // block)]) / asked)


def _median(scores: list[float]) -> float:
    return median(scores) if scores else nan


def _whole(curves: Iterable[Series]) -> list[Series]:
    """The curves that have all of their points."""
    return [curve for curve in curves if not any(map(isnan, curve.y))]


def _with_seeds(label: str, runs: list[list[float]]) -> str:
    """A label with the smallest number of runs behind any value, if it is more than one."""
    least = min((len(run) for run in runs if run), default=0)
    return f"{label} ({least} seeds)" if least > 1 else label


class EndlessItem(Item):
    """The base of the items: runs of several methods over a stream, at several epsilons, with several seeds."""

    needs: ClassVar[tuple[str, ...]] = ("agnews", "dbpedia", "cifar10", "fmnist")
    in_part = True
    parts: ClassVar[tuple[Part, ...]]
    usual_epsilons: ClassVar[tuple[float, ...]] = (0.25, 0.5, 1.0, 2.0)
    methods: ClassVar[tuple[str, ...]]
    close: ClassVar[tuple[str, ...]] = ()
    """Methods that are so close to each other that one run cannot separate them. They run with `usual_seeds`."""
    usual_seeds: ClassVar[int] = 5
    ceilings = ("ridge", "kernel")

    @property
    def present(self) -> list[str]:
        """The data sets that are present. A data set that only stands in for another one has no goals."""
        return [name for name in super().present if name not in self.setting.stand_in]

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The usual epsilons, or those of them that were asked for. A quick run uses only the largest."""
        usual, only = self.usual_epsilons, self.setting.only
        wanted = tuple(e for e in usual if only is None or e in only)
        if not wanted:
            raise InvalidInputError(f"epsilon must be one of {', '.join(f'{e:g}' for e in usual)}, got {only}")
        return wanted[-1:] if self.setting.quick and only is None else wanted

    @property
    def compared(self) -> tuple[str, ...]:
        """All private methods, and the user's own methods."""
        return (*self.methods, *self.setting.roles)

    @property
    def labels(self) -> dict[str, str]:
        """The names of all methods."""
        return LABELS | self.setting.roles

    @property
    def middle(self) -> float:
        """The epsilon of the panels: 1, or the nearest one that is run."""
        return min(self.epsilons, key=lambda e: abs(e - 1.0))

    def length(self, name: str, method: str) -> int:
        """How many queries a method is asked."""
        return min(_QUICK_T if self.setting.quick else MOST, self.setting.sources[name][0].public)

    def runs(self, part: Part, name: str, method: str, epsilon: float | None) -> list[Unit]:
        """One method on one stream, with every seed. A method without privacy has one run."""
        usual = self.usual_seeds if method in self.close and not self.setting.quick else 1
        seeds = range(1 if epsilon is None else self.setting.seeds or usual)
        return [self.trial(part, name, method, epsilon, i) for i in seeds]

    def trial(self, part: Part, name: str, method: str, epsilon: float | None, seed: int = 0) -> Trial:
        """One run, on the main file of this data set."""
        setting, source = self.setting, self.setting.sources[name][0]
        T, records = self.length(name, method), setting.records(source) if setting.quick else None
        more: dict[str, Any] = {"part": part, "seed": seed, "code": METHODS["endless", method].code()}
        base = ("endless", source.stem, source.digest, T, setting.effort, epsilon)
        return Trial(*base, records=records, method=method, **more)

    def ways(self) -> list[tuple[float | None, str]]:
        """Every epsilon with every private method, then the methods without privacy."""
        return [*((e, m) for e in self.epsilons for m in self.compared), *((None, m) for m in self.ceilings)]

    def lines(self) -> dict[Any, list[Unit]]:
        """All runs."""
        places = [(part, name) for part in self.parts for name in self.present]
        return {(*at, e, m): self.runs(*at, m, e) for at in places for e, m in self.ways()}

    def body(self) -> Body:
        """What each stream shows."""
        shown = [self.show(part, name) for part in self.parts for name in self.present]
        panels, tables, findings = ([x for many in column for x in many] for column in zip(*shown, strict=True))
        findings = [finding for finding in findings if finding.agrees is not None]  # only about what was run
        return Body(panels, tables, findings=findings, notes=self.notes(most=MOST, kept=KEPT, jitter=JITTER))

    @abstractmethod
    def show(self, part: Part, name: str) -> Shown:
        """What one stream shows."""

    def scores(self, part: Part, name: str, method: str, e: float | None, start: int, stop: int) -> list[float]:
        """The accuracy on queries `start` to `stop`, for each seed that was run."""
        found = (self.results.get(unit) for unit in self.runs(part, name, method, e))
        return [accuracy(result, start, stop) for result in found if result is not None]

    def score(self, part: Part, name: str, method: str, e: float | None, start: int, stop: int) -> float:
        """The median of these accuracies over the seeds. NaN if no seed was run."""
        return _median(self.scores(part, name, method, e, start, stop))

    def curve(self, part: Part, name: str, method: str, e: float | None, width: int) -> Series:
        """The accuracy along the stream, in windows of `width` queries."""
        ends = range(width, self.length(name, method) + 1, width)
        y = [self.score(part, name, method, e, end - width, end) for end in ends]
        return Series(self.labels[method], [float(end) for end in ends], y, role=_ROLES.get(method, method))

    def table(self, part: Part, name: str, title: str, windows: dict[str, tuple[int, int]]) -> Table:
        """The accuracy of every method in some windows. A cell is empty if the method was not asked so many queries."""

        def cell(e: float | None, m: str, start: int, stop: int) -> str:
            return points(self.score(part, name, m, e, start, stop)) if stop <= self.length(name, m) else ""

        rows = [[self.labels[m], *(cell(e, m, *window) for window in windows.values())] for e, m in self.ways()]
        epsilons = ["∞" if e is None else f"{e:g}" for e, _ in self.ways()]
        return Table(title, ["ε", "accuracy", *windows], [[e, *row] for e, row in zip(epsilons, rows, strict=True)])


class EndlessFigures(EndlessItem):
    """Ind-KNN compared with its parts, with other private methods, and with methods without privacy."""

    name = "endless_figures"
    title = "Queries without end: Ind-KNN, its parts and its rivals"
    parts = ("figures",)
    components = ("model", "votes")
    methods = ("open", "model", "votes", "private_knn", "noisy_sgd", "noisy_sgd_retrained")
    close = ("open", "votes", "noisy_sgd")
    allowed, level = 0.005, 0.003

    def show(self, part: Part, name: str) -> Shown:
        """All methods over epsilon."""
        T, x, labels = self.length(name, ""), self.epsilons, self.labels
        title = f"{self.setting.title(name)}, {T:,} queries"
        found = {m: [self.scores(part, name, m, e, 0, T) for e in x] for m in self.compared}
        ceilings = {m: [self.scores(part, name, m, None, 0, T)] * len(x) for m in self.ceilings}
        rows = [[_with_seeds(labels[m], many), *map(spread, many)] for m, many in (found | ceilings).items()]
        runs = {m: many for m, many in (found | ceilings).items() if all(many)}
        curves = [Series.of(labels[m], x, many, _ROLES.get(m, m)) for m, many in runs.items()]
        medians = {m: [_median(s) for s in many] for m, many in found.items()}
        seeds = min((len(run) for run in (*found["open"], *found["noisy_sgd"]) if run), default=0)
        findings = [self._against_training(title, medians, seeds), self._components(title, medians)]
        table = Table(title, ["median (least to greatest)", *(f"ε = {e:g}" for e in x)], rows)
        return [Panel(title, "ε (δ = 1e-05)", "accuracy", curves)] if curves else [], [table], findings

    def _against_training(self, title: str, medians: dict[str, list[float]], seeds: int) -> Finding:
        both = zip(medians["open"], medians["noisy_sgd"], self.epsilons, strict=True)
        pairs = [pair for pair in both if not any(map(isnan, pair))]
        texts = (f"{points(ours)} against {points(sgd)} ({ours - sgd:+.4f}) at ε = {e:g}" for ours, sgd, e in pairs)
        level = min(ours - sgd for ours, sgd, _ in pairs) >= -self.level if pairs else None
        about = {"title": title, "seeds": "one seed" if seeds == 1 else f"medians of {seeds} seeds"}
        return Finding.of("endless.sgd", level, listed=", ".join(texts), **about)

    def _components(self, title: str, medians: dict[str, list[float]]) -> Finding:
        texts, behind = [], []
        for i, e in enumerate(self.epsilons):
            if any(isnan(medians[m][i]) for m in ("open", *self.components)):
                continue
            best = max(self.components, key=lambda m: medians[m][i])
            behind.append(medians[best][i] - medians["open"][i])
            texts.append(f"{-behind[-1]:+.4f} at ε = {e:g} ({LABELS[best]}: {points(medians[best][i])})")
        close = max(behind) <= self.allowed if behind else None
        return Finding.of("endless.parts", close, title=title, listed=", ".join(texts))


class Tables(EndlessFigures):
    """The same on ordinary tables, each encoded with a schema from public rows."""

    name = "tables"
    title = "Tables through a schema: Ind-KNN, its parts and its rivals"
    needs = ("adult", "letters", "shuttle")


class EndlessStreams(EndlessItem):
    """How the accuracy changes after many times as many queries as were planned."""

    name = "endless_streams"
    title = "Queries without end: long streams"
    parts = ("streams",)
    methods = ("open", "votes", "private_knn", "noisy_sgd", "noisy_sgd_retrained")
    allowed = 0.01

    def once(self, name: str) -> int:
        """1x: the number of queries that Algorithm 3 is tuned for. There are five times as many distinct queries."""
        source = self.setting.sources[name][0]
        n = distinct(self.setting.records(source), source.public)
        return max((min(_QUICK_LONGEST, n) if self.setting.quick else n) // 500, 1) * 100

    def length(self, name: str, method: str) -> int:
        """1x for a method without privacy, 5x for Algorithm 3, the whole stream for the others."""
        if method in self.ceilings:
            return self.once(name)
        most = _QUICK_LONGEST if self.setting.quick else LONGEST
        return max(0 if method == "votes" else most, 5 * self.once(name))

    def show(self, part: Part, name: str) -> Shown:
        """Accuracy along the stream."""
        one, longest, e = self.once(name), self.length(name, "open"), self.middle
        windows = {"1st of 1x": (0, one), "5th of 1x": (4 * one, 5 * one), "last of 1x": (longest - one, longest)}
        windows |= {f"first {m:,}": (0, m) for m in (10_000, 30_000, 100_000) if m <= longest}
        curves = [self.curve(part, name, m, e, max(longest // 2500, 1) * 100) for m in self.compared]
        for m in self.ceilings:
            y = [self.score(part, name, m, None, 0, one)] * 2
            curves.append(Series(LABELS[m], [0.0, float(longest)], y, role=_ROLES[m]))
        title = self.setting.title(name)
        panel = Panel(f"{title}, ε = {e:g}", "queries answered", "accuracy along the stream", _whole(curves))
        table = self.table(part, name, f"{title}, 1x = {one:,} queries", windows)
        return [panel] if panel.series else [], [table], [self._holds(part, name, one)]

    def _holds(self, part: Part, name: str, one: int) -> Finding:
        texts, lost, longest = [], [], self.length(name, "open")
        for e in self.epsilons:
            first = self.score(part, name, "open", e, 0, one)
            last = self.score(part, name, "open", e, longest - one, longest)
            votes = self.score(part, name, "votes", e, 4 * one, 5 * one)
            if isnan(first):
                continue
            lost.append(first - last)
            beside = "" if isnan(votes) else f" (Algorithm 3: {points(votes)} at 5x)"
            texts.append(f"{points(first)} then {points(last)} at ε = {e:g}{beside}")
        about = {"title": self.setting.title(name), "longest": longest, "one": one, "listed": "; ".join(texts)}
        return Finding.of("endless.holds", max(lost) <= self.allowed if lost else None, **about)


class EndlessChange(EndlessItem):
    """Records leave and arrive every 100 queries. In a second part, new classes arrive in one batch at half time."""

    name = "endless_change"
    title = "Queries without end: records that come and go"
    parts = ("change", "drift")
    methods = ("open", "noisy_sgd_retrained", "noisy_sgd", "private_knn")
    close, usual_seeds = ("open", "noisy_sgd_retrained", "noisy_sgd"), 3

    def length(self, name: str, method: str) -> int:
        """A multiple of the step between changes, so that the stream can be divided into halves."""
        return max(super().length(name, method) // (2 * EVERY), 1) * 2 * EVERY

    def show(self, part: Part, name: str) -> Shown:
        """The accuracy in both halves, and a curve if classes arrive."""
        T, e, title, drift = self.length(name, ""), self.middle, self.setting.title(name), part == "drift"
        change = "the same, and new classes at half time" if drift else f"one leaves or arrives every {EVERY}"
        heading = f"{title}, {T:,} queries: {change}"
        windows = {"all": (0, T), "first half": (0, T // 2), "second half": (T // 2, T)}
        ways = [(epsilon, m) for epsilon, m in self.ways() if epsilon in (e, None)] if drift else []
        width = max(T // 20 // EVERY, 1) * EVERY
        curves = [self.curve(part, name, m, epsilon, width) for epsilon, m in ways]
        panel = Panel(f"{title}, new classes at half time, ε = {e:g}", "queries answered", "accuracy", _whole(curves))
        table, finding = self.table(part, name, heading, windows), self._above(part, name, heading, T)
        return [panel] if panel.series else [], [table], [finding]

    def _above(self, part: Part, name: str, title: str, T: int) -> Finding:
        texts, leads = [], []
        for e in self.epsilons:
            ours, retrained, never = (self.score(part, name, m, e, 0, T) for m in self.methods[:3])
            if isnan(ours - retrained):
                continue
            leads.append(ours - retrained)
            texts.append(f"{points(ours)} against {points(retrained)} (never retrained: {points(never)}) at ε = {e:g}")
        return Finding.of("endless.change", min(leads) > 0 if leads else None, title=title, listed="; ".join(texts))

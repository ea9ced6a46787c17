"""Accuracy over epsilon (Figures 1a and 2, and the best hyper-parameters), by number of queries (Figure 1b), by size of
the private set (appendix) and by extractor (Table 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from statistics import mean, median
from typing import Any, ClassVar

from indknn_lab.experiments.data import Result, Unit
from indknn_lab.experiments.items.base import Body, Compared, Finding, Item, Panel, Series, Table, ahead, points, spread
from indknn_lab.experiments.items.retraining import Figure4
from indknn_lab.experiments.methods.queries import TAU_OFFSETS
from indknn_lab.experiments.setting import Source

STEP = TAU_OFFSETS[1] - TAU_OFFSETS[0]
VIT = {
    ("noisy_sgd", 0.5): 0.950, ("private_knn", 0.5): 0.944, ("indknn", 0.5): 0.952,
    ("noisy_sgd", 2.0): 0.967, ("private_knn", 2.0): 0.963, ("indknn", 2.0): 0.964,
}  # fmt: skip
"""What the paper's Table 2 has for ViT features, which Figure 1a uses: by method and epsilon."""


@dataclass(frozen=True)
class Tradeoff:
    """One data set at one T. `against_sgd`: the paper says that Ind-KNN is level with NoisySGD."""

    data: str
    T: int
    delta: float = 1e-5
    rbf: bool = False
    against_sgd: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """The methods that are compared."""
        return ("indknn", "private_knn", "private_knn_one", "noisy_sgd", *(("indknn_rbf",) if self.rbf else ()))


class TradeoffItem(Item):
    """A figure with one panel for each data set."""

    in_part = True
    tradeoffs: ClassVar[tuple[Tradeoff, ...]]
    claim: ClassVar[str]
    """The paper's claim about NoisySGD, for trade-offs that it speaks of."""

    def here(self) -> list[Tradeoff]:
        """The trade-offs whose data are present."""
        return [t for t in self.tradeoffs if t.data in self.present]

    def done(self) -> list[Tradeoff]:
        """The trade-offs whose data are present and whose units are all done."""
        lines = ((t, [self.line(t, role) for role in (*self.roles(t), "plain")]) for t in self.here())
        return [t for t, many in lines if all(self.results.get(unit) is not None for line in many for unit in line)]

    def roles(self, t: Tradeoff) -> tuple[str, ...]:
        """All methods that are compared, also the user's own."""
        return (*t.roles, *self.setting.roles)

    def line(self, t: Tradeoff, role: str) -> list[Unit]:
        """The units of one method over epsilon. `plain` has methods without privacy: a linear model, the kernel vote,
        and the vote of the k nearest."""
        if role == "plain":
            return [self.setting.unit("plain", t.data, t.T, method=m) for m in ("linear", "kernel", "knn")]
        return [self.unit(role, t.data, t.T, e, delta=t.delta) for e in self.setting.epsilons]

    def lines(self) -> dict[tuple[str, str], list[Unit]]:
        """All units, by data set and role."""
        return {(t.data, role): self.line(t, role) for t in self.here() for role in (*self.roles(t), "plain")}

    def body(self) -> Body:
        """The panels, tables with the same numbers, and the findings about the paper's claims."""
        here = self.done()
        findings = [self._beats_private_knn(t) for t in here]
        findings += [self._rbf(t) for t in here if t.data == "cifar10"]
        findings += [self._against_sgd(t) for t in here if t.against_sgd]
        panels, tables = [self._panel(t) for t in here], [self._table(t) for t in here]
        return Body(panels, tables, findings=findings, notes=self.notes())

    def _panel(self, t: Tradeoff) -> Panel:
        ours, x = self.line(t, "indknn"), self.setting.epsilons
        curves = [self.series(role, x, self.line(t, role)) for role in self.roles(t)]
        curves.append(self.series("indknn_gdp", x, ours, key="accuracies_gdp"))
        title = f"{self.setting.title(t.data)}, T = {ours[0].T}"
        return Panel(title, f"ε (δ = {ours[0].delta:g})", "accuracy", curves)

    def _table(self, t: Tradeoff) -> Table:
        rows: list[list[Any]] = []
        for i, e in enumerate(self.setting.epsilons):
            for role in self.roles(t):
                unit = self.line(t, role)[i]
                row = [e, role, spread(self.accuracies(unit))]
                row += [points(VIT.get((role, e), nan))] if t.data == "cifar10" else []
                rows.append([*row, _chosen(self.results[unit])])
                if role == "indknn":
                    gdp = spread(self.accuracies(unit, "accuracies_gdp"))
                    rows.append([e, "indknn_gdp", gdp, *row[3:], "as above"])
        paper = ["in the paper (ViT, from its Table 2)"] if t.data == "cifar10" else []
        columns = ["epsilon", "method", "median (least to greatest)", *paper, "chosen"]
        ours = self.line(t, "indknn")[0]
        return Table(f"{self.setting.title(t.data)}, T = {ours.T}, delta = {ours.delta:g}", columns, rows)

    def _beats_private_knn(self, t: Tradeoff) -> Finding:
        texts = []
        compared = self.pairs(*(self.line(t, role) for role in ("indknn", "private_knn")))
        for i, e in enumerate(self.setting.epsilons):
            ours, theirs = (self.accuracies(self.line(t, role)[i]) for role in ("indknn", "private_knn"))
            above = sum(a > b for a, b in zip(ours, theirs, strict=True))
            medians = f"{points(median(ours))} against {points(median(theirs))}"
            texts.append(f"{medians} at ε = {e:g}, ahead on {above} of {len(ours)} sets")
        about = {"title": self.setting.title(t.data), "compared": self.by_epsilon(compared)}
        return Finding.of("tradeoff.private_knn", ahead(compared), listed="; ".join(texts), **about)

    def _rbf(self, t: Tradeoff) -> Finding:
        pairs = list(zip(*(self.medians(self.line(t, role)) for role in ("indknn_rbf", "indknn")), strict=True))
        compared = self.pairs(self.line(t, "indknn_rbf"), self.line(t, "indknn"))
        both = zip(pairs, self.setting.epsilons, strict=True)
        texts = ", ".join(f"{points(rbf)} and {points(cosine)} at ε = {e:g}" for (rbf, cosine), e in both)
        return Finding.of("tradeoff.rbf", ahead(compared), listed=texts, compared=self.by_epsilon(compared))

    def _against_sgd(self, t: Tradeoff) -> Finding:
        kernels = {"indknn": "Ind-KNN", **({"indknn_rbf": "with RBF"} if t.data == "cifar10" else {})}
        lines = {role: self.pairs(self.line(t, role), self.line(t, "noisy_sgd")) for role in kernels}
        texts = (f"{name} less NoisySGD: {self.by_epsilon(lines[role])}" for role, name in kernels.items())
        linear, kernel, nearest = self.medians(self.line(t, "plain"))
        i = min(range(len(self.setting.epsilons)), key=lambda i: abs(self.setting.epsilons[i] - 1.0))
        ours, sgd = (self.medians(self.line(t, role))[i] for role in ("indknn", "noisy_sgd"))
        level = all(c.level for compared in lines.values() for c in compared)
        about = {"linear": points(linear), "nearest": points(nearest), "kernel": points(kernel), "claim": self.claim}
        about |= {"title": self.setting.title(t.data), "listed": "; ".join(texts)}
        lost = {"difference": kernel - linear, "ours": kernel - ours, "sgd": linear - sgd}
        return Finding.of("tradeoff.sgd", level, epsilon=self.setting.epsilons[i], **about, **lost)


def _chosen(result: Result) -> str:
    """The parameters of a result, as text."""
    names = {"sigma2": "σ2", "tau": "τ", "p": "p", "k": "k", "rate": "rate"}
    text = ", ".join(f"{short} = {result[key]:g}" for key, short in names.items() if key in result)
    return text + (f" (grid extended: {', '.join(result['extended'])})" if result["extended"] else "")


class Figure1a(TradeoffItem):
    """1,000 queries on CIFAR-10."""

    name = "figure1a"
    title = "Figure 1a: privacy against accuracy on CIFAR-10"
    claim = "Both kernels are comparable to Linear NoisySGD across various values of ε."
    tradeoffs = (Tradeoff("cifar10", 1000, rbf=True, against_sgd=True),)


class Figure2(TradeoffItem):
    """The other three data sets."""

    name = "figure2"
    title = "Figure 2: privacy against accuracy on Fashion-MNIST, AG News and DBpedia"
    needs = ("fmnist", "agnews", "dbpedia")
    tradeoffs = (
        Tradeoff("fmnist", 500, rbf=True),
        Tradeoff("agnews", 800, against_sgd=True),
        Tradeoff("dbpedia", 800, delta=1e-6),
    )
    claim = "On AG News Ind-KNN surpasses or matches Linear NoisySGD for ε of at least 0.5."


class Hyperparameters(Item):
    """The best hyper-parameters, and how τ changes with epsilon. All units are shared with the figures."""

    name = "hyperparameters"
    title = "Appendix: best hyper-parameters, and τ by epsilon"
    needs = ("cifar10", "fmnist", "agnews", "dbpedia")
    paper: ClassVar[dict[tuple[str, str], tuple[str, ...]]] = {
        ("cosine", "cifar10"): ("0.7, 0.12", "0.4, 0.12", "0.4, 0.12", "0.4, 0.12"),
        ("cosine", "fmnist"): ("1.3, 0.6", "0.6, 0.6", "0.3, 0.6", "0.3, 0.6"),
        ("cosine", "agnews"): ("0.6, 0.35", "0.4, 0.36", "0.25, 0.37", "0.2, 0.38"),
        ("cosine", "dbpedia"): ("0.45, 0.35", "0.3, 0.37", "0.2, 0.37", "0.1, 0.38"),
        ("RBF", "cifar10"): ("0.6, 0.8", "0.5, 0.25", "0.4, 0.26", "0.2, 0.28"),
        ("RBF", "fmnist"): ("1.3, 0.83", "0.7, 0.82", "0.4, 0.84", "0.3, 0.84"),
        ("hash, 30 tables", "cifar10"): ("0.6, 0.25", "0.4, 0.50", "0.3, 0.52", "0.2, 0.53"),
        ("hash, 30 tables", "agnews"): ("0.7, 0.35", "0.4, 0.36", "0.25, 0.36", "0.2, 0.36"),
    }
    """The best (σ2, τ) in the paper, by kernel and data set, at ε = 0.5, 1, 1.5 and 2."""

    def lines(self) -> dict[tuple[str, str], list[Unit]]:
        """All units over epsilon, by kernel and data set."""
        here = self.setting, self.results
        figures, hashed = Figure1a(*here).lines() | Figure2(*here).lines(), Figure4(*here)
        kernels = {"indknn": "cosine", "indknn_rbf": "RBF"}
        lines = {(kernels[role], name): units for (name, role), units in figures.items() if role in kernels}
        return lines | {("hash, 30 tables", name): hashed.line(name, 30) for name in hashed.present}

    def body(self) -> Body:
        """The best (σ2, τ), and whether they change with epsilon as in the paper."""
        rows: list[list[Any]] = []
        curves: list[Series] = []
        extended: set[str] = set()
        steps: list[int] = []
        noise: list[float] = []
        x = list(self.setting.epsilons)
        for (kernel, name), units in self.lines().items():
            found, title = [self.results[u] for u in units], self.setting.title(name)
            rows.append([kernel, title, *(f"{r['sigma2']:g}, {r['tau']:g}" for r in found)])
            printed = dict(zip((0.5, 1.0, 1.5, 2.0), self.paper.get((kernel, name), ()), strict=False))
            rows += [["", "in the paper", *(printed.get(e, "–") for e in x)]] if printed else []
            taus, sigmas = [r["tau"] for r in found], [r["sigma2"] for r in found]
            curves.append(Series(f"{title}, {kernel}", x, taus, role=f"line{len(curves)}"))
            steps.append(round((taus[-1] - taus[0]) / STEP))
            noise.append(sigmas[-1] - sigmas[0])
            extended.update(note for r in found for note in r["extended"])
        columns = ["kernel", "data", *(f"ε = {e:g}" for e in x)]
        notes = self.notes(extended=", ".join(sorted(extended)) or "nowhere")
        panel = Panel("Best threshold by epsilon", "ε", "τ", curves)
        table = Table("Best (σ2, τ) on the validation set", columns, rows)
        return Body([panel], [table], findings=_rise_and_fall(steps, noise), notes=notes)


def _rise_and_fall(steps: Sequence[int], noise: Sequence[float]) -> list[Finding]:
    """Whether τ rises and σ2 falls with epsilon: by how many steps of the grid τ changes on each line, and by how much
    σ2."""
    rises, falls = sum(s > 0 for s in steps), sum(s < 0 for s in steps)
    counts = {"rises": rises, "falls": falls, "stays": steps.count(0), "most": -min(*steps, 0), "step": STEP}
    up, down = sum(d > 0 for d in noise), sum(d < 0 for d in noise)
    return [
        Finding.of("hyperparameters.tau", min(steps) >= -1 and sum(steps) > 0, n=len(steps), **counts),
        Finding.of(
            "hyperparameters.sigma2", max(noise) <= 0.101 and sum(noise) < 0, n=len(noise), falls=down, rises=up
        ),
    ]


EPSILON = 1.0


class Figure1b(Item):
    """Accuracy over the number of queries, with and without reuse."""

    name = "figure1b"
    title = "Figure 1b: number of queries against accuracy on CIFAR-10"
    varies = ("T",)

    def lines(self) -> dict[str, list[Unit]]:
        """All units over T, by role."""
        lengths = (500, 2000) if self.setting.quick else (500, 1000, 1500, 2000, 2500, 3000)
        roles = ("indknn", "indknn_reuse", "private_knn", "noisy_sgd", *self.own)
        return {role: [self.unit(role, "cifar10", T, EPSILON) for T in lengths] for role in roles}

    def body(self) -> Body:
        """One panel."""
        units = self.lines()
        x = [float(u.T) for u in units["indknn"]]
        title = f"{self.setting.title('cifar10')}, ε = {units['indknn'][0].epsilon:g}"
        panel = Panel(title, "queries T", "accuracy", [self.series(role, x, many) for role, many in units.items()])
        return Body([panel], findings=[self._falls(), self._reuse(x), self._against_sgd(x)], notes=self.notes())

    def _reuse(self, x: list[float]) -> Finding:
        """Whether reuse helps. `private` and `near` are the mean numbers of private neighbours and of released answers
        nearby, over the longest stream."""
        lines, most = self.lines(), self._here(2000)
        unit, known = lines["indknn_reuse"][-1], [u for u in lines["indknn"] if most >= u.T][-1]
        gains = zip(self.pairs(lines["indknn_reuse"], lines["indknn"]), x, strict=True)
        later, without = (
            Compared.apart(self.accuracies(u), self.accuracies(known)) for u in (unit, lines["indknn"][-1])
        )
        private = self.results[unit]["neighbours"]
        near = private / (unit.records or self.setting.sources["cifar10"][0].private) * unit.T / 2
        right = round(100 * median(self.medians(lines["indknn"])))
        no_drop = "There is no drop without reuse either, so reuse is not the reason. " if without.level else ""
        about = {"T": unit.T, "known": known.T, "later": later, "without": without, "no_drop": no_drop, "right": right}
        listed = ", ".join(f"{gain} at {T:g}" for gain, T in gains)
        return Finding.of("figure1b.reuse", later.level, gains=listed, private=private, near=near, **about)

    def _falls(self) -> Finding:
        lines = {role: self.lines()[role] for role in ("indknn", "private_knn")}
        first, last = self.lines()["indknn"][0].T, self.lines()["indknn"][-1].T
        lost = {r: Compared.apart(self.accuracies(u[0]), self.accuracies(u[-1])) for r, u in lines.items()}
        leads = [str(pair) for pair in self.pairs(*lines.values())]
        agrees = lost["indknn"].ahead is not True if lost["private_knn"].ahead else lost["private_knn"].ahead
        return Finding.of("figure1b.falls", agrees, first=first, last=last, lead=leads[0], later=leads[-1], **lost)

    def _against_sgd(self, x: list[float]) -> Finding:
        most = self._here(2000)
        few = [i for i, T in enumerate(x) if most > T]
        compared = self.pairs(*([self.lines()[role][i] for i in few] for role in ("indknn", "noisy_sgd")))
        texts = ", ".join(f"{pair} at T = {x[i]:g}" for pair, i in zip(compared, few, strict=True))
        return Finding.of("figure1b.sgd", ahead(compared), listed=texts)

    def _here(self, T: int) -> int:
        return self.setting.queries(T, self.setting.sources["cifar10"][0])


class Size(Item):
    """Accuracy over the size of the private set, from 50,000 to 400,000 by copying records."""

    name = "size"
    title = "Appendix: size of the private set"
    varies = ("delta",)

    @property
    def source(self) -> Source:
        """ResNet-50 features, as in the paper, if they are there."""
        return self.setting.source("cifar10", "r50")

    def lines(self) -> dict[str, list[Unit]]:
        """All units over the number of copies, by role. delta is 1 divided by the number of records."""
        n = self.setting.records(self.source)
        copies = (1, 4) if self.setting.quick else (1, 2, 4, 6, 8)
        more = [{"copies": c, "delta": 1.0 / (c * n), "source": self.source} for c in copies]
        roles = ("indknn", "private_knn", *self.own)
        return {role: [self.unit(role, "cifar10", 2000, EPSILON, **m) for m in more] for role in roles}

    def body(self) -> Body:
        """One panel."""
        units = self.lines()
        x = [float(round(1.0 / u.delta)) for u in units["indknn"]]
        curves = [self.series(role, x, many) for role, many in units.items()]
        data, first = self.setting.title("cifar10", self.source), units["indknn"][0]
        title = f"{data}, T = {first.T}, ε = {first.epsilon:g}, δ = 1/N"
        gains = {r: Compared.of(*(self.accuracies(units[r][i]) for i in (-1, 0))) for r in ("indknn", "private_knn")}
        leads = [str(pair) for pair in self.pairs(units["indknn"], units["private_knn"])]
        agrees = min((gain.ahead for gain in gains.values()), key=(False, None, True).index)
        about = {"least": x[0], "most": x[-1], "first": leads[0], "last": leads[-1]}
        finding = Finding.of("size.benefit", agrees, **gains, **about)
        return Body([Panel(title, "private records N", "accuracy", curves)], findings=[finding], notes=self.notes())


T = 1000
EXTRACTORS = {"r50": "ResNet50", "simclr": "SimCLRv2", "vit": "ViT"}
PAPER_NAMES = {**EXTRACTORS, "r50-logits": "ResNet50"}
"""The extractors of the paper, by the names of files. The paper's ResNet-50 gives its 1000 outputs."""
NAMES = {"noisy_sgd": "Linear NoisySGD", "private_knn": "Private-kNN", "indknn": "Ind-KNN"}
PLAIN = {"noisy_sgd": "linear", "private_knn": "knn", "indknn": "kernel"}
PAPER = {
    "0.5": {"noisy_sgd": (0.862, 0.897, 0.950), "private_knn": (0.731, 0.760, 0.944), "indknn": (0.794, 0.824, 0.952)},
    "2": {"noisy_sgd": (0.884, 0.902, 0.967), "private_knn": (0.816, 0.847, 0.963), "indknn": (0.828, 0.863, 0.964)},
    "inf": {"noisy_sgd": (0.900, 0.907, 0.970), "private_knn": (0.829, 0.851, 0.966), "indknn": (0.847, 0.892, 0.969)},
}


class Table2(Item):
    """Accuracy with every extractor, at the least epsilon, at the greatest, and without privacy."""

    name = "table2"
    title = "Table 2: feature extractors"

    def sources(self) -> tuple[Source, ...]:
        """The feature files. Small copies are used only if there are no others."""
        files = self.setting.sources["cifar10"]
        return tuple(s for s in files if not s.stem.endswith("-mini")) or files

    def cell(self, source: Source, role: str, epsilon: float | None) -> Unit:
        """The unit for one cell."""
        if epsilon is None:
            return self.setting.unit("plain", "cifar10", T, source=source, method=PLAIN[role])
        return self.setting.unit(role, "cifar10", T, epsilon, source=source)

    def lines(self) -> dict[str, list[Unit]]:
        """All cells, by role."""
        cells = [(source, e) for source in self.sources() for e in self._levels()]
        lines = {role: [self.cell(source, role, e) for source, e in cells] for role in NAMES}
        return lines | {role: [self.cell(s, role, e) for s, e in cells if e is not None] for role in self.own}

    def body(self) -> Body:
        """The table, with the paper's numbers."""
        sources, rows = self.sources(), []
        for e in self._levels():
            level = "inf" if e is None else f"{e:g}"
            for role, name in (NAMES | (self.setting.roles if e is not None else {})).items():
                values = self.medians(self.cell(s, role, e) for s in sources)
                printed = PAPER.get(level, {}).get(role, (nan,) * len(EXTRACTORS))
                rows.append([level, name, *map(points, values), *map(points, printed)])
        title = f"{self.setting.own or 'CIFAR-10'}: accuracy of T = {self.cell(sources[0], 'indknn', 1.0).T} queries"
        columns = [*(s.extractor for s in sources), *(f"paper, {name}" for name in EXTRACTORS.values())]
        found = Table(f"{title}, by extractor", ["epsilon", "method", *columns], rows)
        there = {PAPER_NAMES.get(s.extractor) for s in sources}
        lacking = [f"{name} (cifar10-{key}.npz)" for key, name in EXTRACTORS.items() if name not in there]
        findings = [finding for source in sources for finding in self._findings(source)]
        return Body(
            [], [found], findings=[*findings, *self._better()], notes=self.notes(lacking=", ".join(lacking) or "none")
        )

    def _levels(self) -> tuple[float | None, ...]:
        return (*dict.fromkeys((self.setting.epsilons[0], self.setting.epsilons[-1])), None)

    def _sets(self, source: Source, role: str, epsilon: float | None) -> list[float]:
        return self.accuracies(self.cell(source, role, epsilon))

    def _compared(self, source: Source, ours: str, theirs: str, epsilon: float | None) -> Compared:
        return Compared.of(self._sets(source, ours, epsilon), self._sets(source, theirs, epsilon))

    def _findings(self, source: Source) -> list[Finding]:
        name, *_, high, _ = source.extractor, *self._levels()
        low, plain = self._levels()[0], self._compared(source, "indknn", "private_knn", None)
        leads = {e: self._compared(source, "indknn", "private_knn", e) for e in (low, high)}
        by_set = (
            [a - b for a, b in zip(*(self._sets(source, r, e) for r in ("indknn", "private_knn")), strict=True)]
            for e in (low, high)
        )
        shrinks = Compared.of(*by_set)
        fragile = ahead([*leads.values(), shrinks]) if shrinks.ahead else shrinks.ahead
        found = [
            Finding.of("table2.plain", plain.ahead, name=name, plain=plain),
            Finding.of("table2.fragile", fragile, name=name, leads=tuple(leads.items()), shrinks=shrinks),
        ]
        if PAPER_NAMES.get(name) in {"ResNet50", "SimCLRv2"}:
            first = [self._compared(source, "noisy_sgd", "indknn", e) for e in (low, high)]
            texts = (
                f"ε = {e:g}: NoisySGD less Ind-KNN {a}, Ind-KNN less Private-kNN {leads[e]}"
                for e, a in zip((low, high), first, strict=True)
            )
            agrees = ahead([*first, *leads.values()])
            found.append(Finding.of("table2.order", agrees, name=name, listed="; ".join(texts)))
        return found

    def _better(self) -> list[Finding]:
        """Whether Ind-KNN comes closer to NoisySGD with a better extractor, by accuracy of a linear model."""
        order = sorted(self.sources(), key=lambda s: median(self._sets(s, "noisy_sgd", None)))
        best, low = order[-1], self.setting.epsilons[0]
        small = self._compared(best, "indknn", "noisy_sgd", low)
        plain = self._compared(best, "indknn", "noisy_sgd", None)
        found = [Finding.of("table2.good", small.ahead, name=best.extractor, low=low, small=small, plain=plain)]
        if len(order) < 2:
            return found
        gaps = {(s, e): self._gaps(s, e) for s in order for e in self._levels()}
        texts = [f"{s.extractor} ({', '.join(f'{mean(gaps[s, e]):+.3f}' for e in self._levels())})" for s in order]
        shrinks = [Compared.of(gaps[a, e], gaps[b, e]) for a, b in pairwise(order) for e in self._levels()[:-1]]
        levels = ", ".join("no privacy" if e is None else f"ε = {e:g}" for e in self._levels())
        about = {"levels": levels, "listed": ", ".join(texts), "shrinks": ", ".join(map(str, shrinks))}
        return [*found, Finding.of("table2.gap", ahead(shrinks), **about)]

    def _gaps(self, source: Source, epsilon: float | None) -> list[float]:
        both = zip(*(self._sets(source, role, epsilon) for role in ("noisy_sgd", "indknn")), strict=True)
        return [sgd - ours for sgd, ours in both]

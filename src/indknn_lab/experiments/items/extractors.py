"""Table 2, which compares feature extractors. It has one column for each file cifar10-*.npz that is present."""

from __future__ import annotations

from indknn_lab.experiments.items.base import Body, Finding, Item, Table, points
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Source
from indknn_lab.experiments.units import Unit

T = 1000
EXTRACTORS = {"r50": "ResNet50", "simclr": "SimCLRv2", "vit": "ViT"}
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
        return {role: [self.cell(source, role, e) for source, e in cells] for role in NAMES}

    def body(self) -> Body:
        """The table, with the paper's numbers."""
        sources, rows = self.sources(), []
        first: dict[tuple[float | None, str], float] = {}
        for e in self._levels():
            for role, name in NAMES.items():
                values = self.medians(self.cell(s, role, e) for s in sources)
                rows.append(["inf" if e is None else f"{e:g}", name, *(points(v) for v in values)])
                first[e, role] = values[0]
        printed = [[e, NAMES[role], *map(points, cells)] for e, row in PAPER.items() for role, cells in row.items()]
        columns = ["epsilon", "method"]
        title = f"{self.setting.title('cifar10')}: accuracy of T = {self.setting.queries(T, sources[0])} queries"
        found = Table(title, [*columns, *(f"{s.stem}.npz" for s in sources)], rows)
        paper = Table("The paper's Table 2", [*columns, *EXTRACTORS.values()], printed)
        there = {s.stem.split("-", maxsplit=1)[1] for s in sources}
        lacking = [f"{title} (cifar10-{key}.npz)" for key, title in EXTRACTORS.items() if key not in there]
        notes = [
            NOT_PAID_FOR,
            f"Not run, because there are no features: {', '.join(lacking) or 'none'}.",
            "epsilon = inf: no noise and no budgets; kNN with the best k; logistic regression.",
        ]
        return Body([], [found], [paper], self._findings(first), notes)

    def _levels(self) -> tuple[float | None, ...]:
        return self.setting.epsilons[0], self.setting.epsilons[-1], None

    def _findings(self, acc: dict[tuple[float | None, str], float]) -> list[Finding]:
        low, high = self.setting.epsilons[0], self.setting.epsilons[-1]
        ordered = all(acc[e, "noisy_sgd"] > acc[e, "indknn"] > acc[e, "private_knn"] for e in (low, high))
        text = "; ".join(
            f"ε = {e:g}: NoisySGD {points(acc[e, 'noisy_sgd'])}, Ind-KNN {points(acc[e, 'indknn'])}, "
            f"Private-kNN {points(acc[e, 'private_knn'])}"
            for e in (low, high)
        )
        lead = {e: 100 * (acc[e, "indknn"] - acc[e, "private_knn"]) for e in (low, high, None)}
        loss = {role: 100 * (acc[None, role] - acc[low, role]) for role in NAMES}
        return [
            Finding.explained(
                "Without privacy Ind-KNN is ahead of kNN (ResNet50: 84.7 and 82.9%).",
                f"The kernel vote has {points(acc[None, 'indknn'])}, kNN {points(acc[None, 'private_knn'])}.",
                lead[None] > 0,
                "One threshold for all queries finds thousands of neighbours for some and hardly any for others; the "
                "k nearest adapt. Under privacy the order turns, because noise asks for hundreds of votes.",
            ),
            Finding("On ResNet50 features NoisySGD is first, Ind-KNN second, Private-kNN third.", text + ".", ordered),
            Finding(
                "Private-kNN is more fragile when ε is small (ResNet50: 6.3 points behind Ind-KNN at ε = 0.5, 1.2 at "
                "2).",
                f"It is {lead[low]:.1f} points behind at ε = {low:g} and {lead[high]:.1f} at {high:g}; against no "
                f"privacy it loses {loss['private_knn']:.1f} points at ε = {low:g}, Ind-KNN {loss['indknn']:.1f}.",
                lead[low] > lead[high] > 0,
                ""
                if lead[low] > lead[high]
                else "With an exact accountant and (p, k) searched beyond the paper's ranges it is less fragile.",
            ),
        ]

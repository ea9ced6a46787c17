"""Accuracy over the number of queries (Figure 1b) and over the size of the private set (appendix)."""

from __future__ import annotations

from statistics import median

from indknn_lab.experiments.items.base import Body, Finding, Item, Panel, points
from indknn_lab.experiments.items.tradeoff import EXACT
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.units import Unit

EPSILON = 1.0


class Figure1b(Item):
    """Accuracy over the number of queries, with and without reuse."""

    name = "figure1b"
    title = "Figure 1b: number of queries against accuracy on CIFAR-10"

    def lines(self) -> dict[str, list[Unit]]:
        """All units over T, by role."""
        lengths = (500, 2000) if self.setting.quick else (500, 1000, 1500, 2000, 2500, 3000)
        roles = ("indknn", "indknn_reuse", "private_knn", "noisy_sgd")
        return {role: [self.unit(role, "cifar10", T, EPSILON) for T in lengths] for role in roles}

    def body(self) -> Body:
        """One panel."""
        units = self.lines()
        x = [float(u.T) for u in units["indknn"]]
        title = f"{self.setting.title('cifar10')}, ε = {EPSILON:g}"
        panel = Panel(title, "queries T", "accuracy", [self.series(role, x, many) for role, many in units.items()])
        y = {curve.role: curve.y for curve in panel.series}
        notes = [
            NOT_PAID_FOR,
            EXACT,
            "Noise and parameters are chosen separately for each T. From T = 2,000 on, the five test sets are drawn "
            "independently from all rows outside the validation set, so they overlap.",
        ]
        return Body([panel], findings=[_falls(x, y), self._reuse(x, y), _against_sgd(x, y)], notes=notes)

    def _reuse(self, x: list[float], y: dict[str, list[float]]) -> Finding:
        """Whether reuse helps. `private` and `near` are the mean numbers of private neighbours and of released answers
        nearby, over the longest stream."""
        without, reusing = y["indknn"], y["indknn_reuse"]
        gains = ", ".join(f"{b - a:+.3f} at {T:g}" for a, b, T in zip(without, reusing, x, strict=True))
        short = [(T, accuracy) for T, accuracy in zip(x, without, strict=True) if T <= 2000]
        (T, middle), best = short[-1], max(accuracy for _, accuracy in short)
        unit = self.lines()["indknn_reuse"][-1]
        private = self.results[unit]["neighbours"]
        near = private / (unit.records or self.setting.sources["cifar10"][0].private) * unit.T / 2
        return Finding.explained(
            "Reuse lets Ind-KNN answer 1,000 more queries (from T = 2,000 to 3,000) without an accuracy drop.",
            f"Reuse gains {gains}. With it T = {x[-1]:g} reaches {points(reusing[-1])}; without it "
            f"T = {T:g} has {points(middle)} (best {points(best)}).",
            reusing[-1] >= middle - 0.005,
            f"A query has about {private:.0f} private neighbours and, over the stream, about {near:.0f} released "
            "answers near it (if queries are spread like records), so reuse adds a few hundredths to the votes; and of "
            f"what it adds about {round(100 * median(without))} in 100 are right, with the paper's features 96.",
        )


def _falls(x: list[float], y: dict[str, list[float]]) -> Finding:
    ours, theirs = y["indknn"], y["private_knn"]
    lost, their_loss = ours[0] - ours[-1], theirs[0] - theirs[-1]
    return Finding.explained(
        "The accuracy of Private-kNN drops rapidly with the number of queries; that of Ind-KNN does not significantly.",
        f"From T = {x[0]:g} to {x[-1]:g} Private-kNN loses {their_loss:.3f} and Ind-KNN {lost:.3f}; the lead of "
        f"Ind-KNN goes from {ours[0] - theirs[0]:+.3f} to {ours[-1] - theirs[-1]:+.3f}.",
        lost < their_loss,
        "Private-kNN is tuned for each T here, with an exact accountant. With more queries it uses more neighbours. "
        "What remains of its loss is no larger than that of Ind-KNN, whose budgets also run out.",
    )


def _against_sgd(x: list[float], y: dict[str, list[float]]) -> Finding:
    ahead = [T for T, a, b in zip(x, y["indknn"], y["noisy_sgd"], strict=True) if a >= b]
    sgd, ours = median(y["noisy_sgd"]), max(y["indknn"])
    return Finding(
        "With fewer than 2,000 queries Ind-KNN outperforms Linear NoisySGD.",
        f"Ind-KNN is level or ahead at T = {', '.join(f'{T:g}' for T in ahead)}."
        if ahead
        else f"It does not at any T: NoisySGD has {points(sgd)}, Ind-KNN at best {points(ours)}.",
        bool(ahead),
        "These features suit a linear model better than a vote of neighbours, already without privacy (Figure 1a "
        "and Table 2); the paper finds the same order on its ResNet-50 features.",
    )


class Size(Item):
    """Accuracy over the size of the private set, from 50,000 to 400,000 by copying records."""

    name = "size"
    title = "Appendix: size of the private set"

    def lines(self) -> dict[str, list[Unit]]:
        """All units over the number of copies, by role. delta is 1 divided by the number of records."""
        n = self.setting.records(self.setting.sources["cifar10"][0])
        more = [{"copies": c, "delta": 1.0 / (c * n)} for c in ((1, 4) if self.setting.quick else (1, 2, 4, 6, 8))]
        return {r: [self.unit(r, "cifar10", 2000, EPSILON, **m) for m in more] for r in ("indknn", "private_knn")}

    def body(self) -> Body:
        """One panel."""
        units = self.lines()
        x = [float(round(1.0 / u.delta)) for u in units["indknn"]]
        curves = [self.series(role, x, many) for role, many in units.items()]
        ours, theirs = (curve.y for curve in curves)
        title = f"{self.setting.title('cifar10')}, T = {units['indknn'][0].T}, ε = {EPSILON:g}, δ = 1/N"
        finding = Finding(
            "Both Ind-KNN and Private-kNN benefit from more private data.",
            f"From N = {x[0]:,.0f} to {x[-1]:,.0f} Ind-KNN gains {ours[-1] - ours[0]:+.3f} and Private-kNN "
            f"{theirs[-1] - theirs[0]:+.3f}; the lead of Ind-KNN goes from {ours[0] - theirs[0]:+.3f} to "
            f"{ours[-1] - theirs[-1]:+.3f}.",
            min(ours[-1] - ours[0], theirs[-1] - theirs[0]) > 0,
        )
        notes = [
            NOT_PAID_FOR,
            "As in the paper, every record is copied, and each copy has a different owner. Copies bring no new "
            "information, only more votes against the noise. Without privacy the accuracy would not change.",
        ]
        return Body([Panel(title, "private records N", "accuracy", curves)], findings=[finding], notes=notes)

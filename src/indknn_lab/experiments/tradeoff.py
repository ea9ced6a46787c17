"""Epsilon against accuracy, for every method: the panels of Figure 1a and Figure 2, and the sentence about them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from indknn_lab.experiments.curves import differences, points, series, spread
from indknn_lab.experiments.outcome import Finding, Panel, Series, Table
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Unit

EXACT = (
    "Private-kNN and NoisySGD are priced by privacy loss distributions, which need 5 to 20% less noise than the "
    "Rényi accountants of the paper; Ind-KNN keeps the paper's Rényi filter unless a line says gdp."
)
FAIR = (
    "Private-kNN is charged for the real sensitivity of a vote of the k nearest, sqrt(2): a record that enters "
    "pushes another out. The dotted line shows it with sensitivity 1, which does not keep the promise."
)


@dataclass(frozen=True)
class Tradeoff:
    """One data set at one T."""

    data: str
    T: int
    delta: float = 1e-5
    rbf: bool = False

    def units(self, setting: Setting) -> dict[str, list[Unit]]:
        """By role."""
        common: dict[str, Any] = {"delta": self.delta}
        made = {
            "indknn": [setting.unit("indknn", self.data, self.T, e, **common) for e in setting.epsilons],
            "private_knn": [setting.unit("private_knn", self.data, self.T, e, **common) for e in setting.epsilons],
            "private_knn_one": [
                setting.unit("private_knn", self.data, self.T, e, sensitivity="one", **common) for e in setting.epsilons
            ],
            "noisy_sgd": [setting.unit("noisy_sgd", self.data, self.T, e, **common) for e in setting.epsilons],
        }
        if self.rbf:
            made["indknn_rbf"] = [
                setting.unit("indknn", self.data, self.T, e, kernel="rbf", **common) for e in setting.epsilons
            ]
        return made

    def panel(self, setting: Setting, results: Results) -> Panel:
        """The curves."""
        units, x = self.units(setting), setting.epsilons
        T = units["indknn"][0].T
        curves: list[Series] = [series(role, x, many, results) for role, many in units.items()]
        curves.append(series("indknn_gdp", x, units["indknn"], results, key="accuracies_gdp"))
        title = f"{setting.title(self.data)}, T = {T}"
        return Panel(title, f"ε (δ = {self.delta:g})", "accuracy", curves)

    def table(self, setting: Setting, results: Results) -> Table:
        """The same as numbers, with the parameters that were chosen."""
        units = self.units(setting)
        rows = []
        for i, e in enumerate(setting.epsilons):
            for role, many in units.items():
                r = results[many[i]]
                rows.append([e, role, spread(r["accuracies"]), _chosen(r)])
                if role == "indknn":
                    rows.append([e, "indknn_gdp", spread(r["accuracies_gdp"]), "as above"])
        columns = ["epsilon", "method", "median (least to greatest)", "chosen"]
        return Table(f"{setting.title(self.data)}, T = {units['indknn'][0].T}, delta = {self.delta:g}", columns, rows)

    def beats_private_knn(self, setting: Setting, results: Results) -> Finding:
        """The paper's first claim, at every epsilon."""
        units = self.units(setting)
        gaps, texts = [], []
        for i, e in enumerate(setting.epsilons):
            ours, theirs = (results[units[role][i]]["accuracies"] for role in ("indknn", "private_knn"))
            gaps.append(median(ours) - median(theirs))
            ahead = sum(a > b for a, b in zip(ours, theirs, strict=True))
            texts.append(
                f"{points(median(ours))} against {points(median(theirs))} at ε = {e:g}, "
                f"ahead on {ahead} of {len(ours)} sets"
            )
        paired = [
            differences(results[units["indknn"][i]]["accuracies"], results[units["private_knn"][i]]["accuracies"])
            for i in range(len(setting.epsilons))
        ]
        why = ""
        if min(gaps) <= 0:
            why = (
                "On the same test sets the median difference is "
                + ", ".join(f"{d:+.3f} at ε = {e:g}" for d, e in zip(paired, setting.epsilons, strict=True))
                + f"; one answer in {units['indknn'][0].T} moves an accuracy by {1 / units['indknn'][0].T:.4f}."
            )
        return Finding(
            "Ind-KNN consistently outperforms Private-kNN for ε between 0.5 and 2.",
            f"{setting.title(self.data)}: " + "; ".join(texts) + ".",
            min(gaps) > 0,
            why,
        )

    def against_sgd(self, setting: Setting, results: Results, claim: str, tolerance: float) -> Finding:
        """Whether Ind-KNN is level with NoisySGD or above it."""
        units, plain = self.units(setting), self.plain_units(setting)
        gaps = [
            median(results[a]["accuracies"]) - median(results[b]["accuracies"])
            for a, b in zip(units["indknn"], units["noisy_sgd"], strict=True)
        ]
        linear, kernel = (median(results[u]["accuracies"]) for u in plain)
        level = min(gaps) >= -tolerance
        texts = ", ".join(f"{g:+.3f} at ε = {e:g}" for g, e in zip(gaps, setting.epsilons, strict=True))
        why = (
            f"Without privacy a linear model reaches {points(linear)} on these features and the kernel vote "
            f"{points(kernel)}, a difference of {kernel - linear:+.3f} before any noise. On the paper's ViT features "
            "the two were level (97.0 and 96.9%)."
        )
        return Finding(claim, f"Ind-KNN less NoisySGD: {texts}.", level, why)

    def plain_units(self, setting: Setting) -> list[Unit]:
        """Linear model and kernel vote without privacy."""
        return [setting.unit("plain", self.data, self.T, method=m) for m in ("linear", "kernel")]


def _chosen(result: dict[str, Any]) -> str:
    """The parameters of a result, in words."""
    names = {"sigma2": "σ2", "tau": "τ", "p": "p", "k": "k", "rate": "rate"}
    text = ", ".join(f"{short} = {result[key]:g}" for key, short in names.items() if key in result)
    return text + (f" (grid extended: {', '.join(result['extended'])})" if result["extended"] else "")

"""Table 2: the feature extractor. One column per file cifar10-*.npz that is there."""

from __future__ import annotations

from statistics import median

from indknn_lab.experiments.curves import points
from indknn_lab.experiments.outcome import Body, Finding, Item, Table
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.search import NOT_PAID_FOR
from indknn_lab.experiments.setting import Setting, Source
from indknn_lab.experiments.units import Unit

T = 1000
EXTRACTORS = {"r50": "ResNet50", "simclr": "SimCLRv2", "vit": "ViT"}
ROLES = ("noisy_sgd", "private_knn", "indknn")
NAMES = {"noisy_sgd": "Linear NoisySGD", "private_knn": "Private-kNN", "indknn": "Ind-KNN"}
PLAIN = {"noisy_sgd": "linear", "private_knn": "knn", "indknn": "kernel"}
PAPER = {
    ("0.5", "noisy_sgd"): (0.862, 0.897, 0.950),
    ("0.5", "private_knn"): (0.731, 0.760, 0.944),
    ("0.5", "indknn"): (0.794, 0.824, 0.952),
    ("2", "noisy_sgd"): (0.884, 0.902, 0.967),
    ("2", "private_knn"): (0.816, 0.847, 0.963),
    ("2", "indknn"): (0.828, 0.863, 0.964),
    ("inf", "noisy_sgd"): (0.900, 0.907, 0.970),
    ("inf", "private_knn"): (0.829, 0.851, 0.966),
    ("inf", "indknn"): (0.847, 0.892, 0.969),
}


def _levels(setting: Setting) -> list[float]:
    return [setting.epsilons[0], setting.epsilons[-1]]


def _sources(setting: Setting) -> tuple[Source, ...]:
    full = tuple(s for s in setting.sources.get("cifar10", ()) if not s.stem.endswith("-mini"))
    return full or setting.sources["cifar10"]


def _unit(setting: Setting, source: Source, role: str, epsilon: float | None) -> Unit:
    if epsilon is None:
        return setting.unit("plain", "cifar10", T, source=source, method=PLAIN[role])
    kind = {"noisy_sgd": "noisy_sgd", "private_knn": "private_knn", "indknn": "indknn"}[role]
    return setting.unit(kind, "cifar10", T, epsilon, source=source)  # type: ignore[arg-type]


def _units(setting: Setting) -> list[Unit]:
    return [
        _unit(setting, source, role, e)
        for source in _sources(setting)
        for role in ROLES
        for e in (*_levels(setting), None)
    ]


def _assemble(setting: Setting, results: Results) -> Body:
    sources = _sources(setting)
    rows, gaps = [], {}
    for e in (*_levels(setting), None):
        for role in ROLES:
            values = [median(results[_unit(setting, s, role, e)]["accuracies"]) for s in sources]
            rows.append(["inf" if e is None else f"{e:g}", NAMES[role], *(points(v) for v in values)])
            gaps[e, role] = values[0]
    columns = ["epsilon", "method", *(f"{s.stem}.npz" for s in sources)]
    printed = [[e, NAMES[role], *(points(v) for v in values)] for (e, role), values in PAPER.items()]
    paper = Table("The paper's Table 2", ["epsilon", "method", *EXTRACTORS.values()], printed)
    return Body(
        tables=[
            Table(
                f"{setting.title('cifar10')}: accuracy of T = {setting.queries(T, sources[0])} queries", columns, rows
            )
        ],
        paper=[paper],
        findings=_findings(gaps, _levels(setting)),
        notes=[
            NOT_PAID_FOR,
            _missing(sources),
            "epsilon = inf: no noise and no budgets; kNN with the best k; logistic regression.",
        ],
    )


def _missing(sources: tuple[Source, ...]) -> str:
    present = {s.stem.split("-", maxsplit=1)[1] for s in sources}
    lacking = [f"{title} (cifar10-{key}.npz)" for key, title in EXTRACTORS.items() if key not in present]
    return f"Not run, for want of features: {', '.join(lacking) or 'none'}."


def _findings(acc: dict[tuple[float | None, str], float], levels: list[float]) -> list[Finding]:
    ordered = all(acc[e, "noisy_sgd"] > acc[e, "indknn"] > acc[e, "private_knn"] for e in levels)
    text = "; ".join(
        f"ε = {e:g}: NoisySGD {points(acc[e, 'noisy_sgd'])}, Ind-KNN {points(acc[e, 'indknn'])}, "
        f"Private-kNN {points(acc[e, 'private_knn'])}"
        for e in levels
    )
    lead = [acc[e, "indknn"] - acc[e, "private_knn"] for e in levels]
    loss = {role: acc[None, role] - acc[levels[0], role] for role in ROLES}
    plain = acc[None, "indknn"] - acc[None, "private_knn"]
    return [
        Finding(
            "Without privacy Ind-KNN is ahead of kNN (ResNet50: 84.7 and 82.9%).",
            f"The kernel vote has {points(acc[None, 'indknn'])}, kNN {points(acc[None, 'private_knn'])}.",
            plain > 0,
            ""
            if plain > 0
            else "One threshold for all queries finds thousands of neighbours for some and hardly any for others; the "
            "k nearest adapt. Under privacy the order turns, because noise asks for hundreds of votes.",
        ),
        Finding("On ResNet50 features NoisySGD is first, Ind-KNN second, Private-kNN third.", text + ".", ordered),
        Finding(
            "Private-kNN is more fragile when ε is small (ResNet50: 6.3 points behind Ind-KNN at ε = 0.5, 1.2 at 2).",
            f"It is {100 * lead[0]:.1f} points behind at ε = {levels[0]:g} and {100 * lead[1]:.1f} at {levels[1]:g}; "
            f"against no privacy it loses {100 * loss['private_knn']:.1f} points at ε = {levels[0]:g}, Ind-KNN "
            f"{100 * loss['indknn']:.1f}.",
            lead[0] > lead[1] and lead[1] > 0,
            ""
            if lead[0] > lead[1]
            else "With an exact accountant and (p, k) searched beyond the paper's ranges it is less fragile.",
        ),
    ]


ITEM = Item("table2", "Table 2: feature extractors", ("cifar10",), _units, _assemble)

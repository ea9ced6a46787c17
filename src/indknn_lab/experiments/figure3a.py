"""Figure 3a: computing time per query against the frequency of retraining."""

from __future__ import annotations

from indknn_lab.experiments.outcome import Body, Finding, Item, Panel, Series
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Unit

TABLES, BITS = 30, 8
FREQUENCIES = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
SECONDS = (
    "Seconds are of one core of the machine that ran this, the shortest of seven rounds; only their ratios mean "
    "anything elsewhere. The paper used a GPU for training and Python loops over the store."
)


def timing_units(setting: Setting) -> dict[str, Unit]:
    """One training and one answer of each method on CIFAR-10."""
    unit = setting.unit
    return {
        "noisy_sgd": unit("timing", "cifar10", 1000, 1.0, method="noisy_sgd"),
        "private_knn": unit("timing", "cifar10", 1000, 1.0, method="private_knn"),
        "indknn": unit("timing", "cifar10", 1000, 1.0, method="indknn"),
        "hash": unit("timing", "cifar10", 1000, 1.0, method="indknn", tables=TABLES, bits=BITS),
    }


def _units(setting: Setting) -> list[Unit]:
    return [u for role, u in timing_units(setting).items() if role != "private_knn"]


def _assemble(setting: Setting, results: Results) -> Body:
    times = {role: results[u] for role, u in timing_units(setting).items() if role != "private_knn"}
    training, answer = times["noisy_sgd"]["training"], times["noisy_sgd"]["per_query"]
    x = [float(q) for q in FREQUENCIES]
    curves = [Series("Linear NoisySGD", x, [training / q + answer for q in x], role="noisy_sgd")]
    labels = {"indknn": "Ind-KNN", "hash": f"Ind-KNN, hashing with {TABLES} tables"}
    for role, label in labels.items():
        curves.append(Series(f"{label}, in batches", x, [times[role]["per_query"]] * len(x), role=role))
    curves.append(
        Series("Ind-KNN, one at a time", x, [times["indknn"]["per_query_alone"]] * len(x), role="indknn_alone")
    )
    meet = training / times["indknn"]["per_query"]
    return Body(
        panels=[
            Panel(
                f"{setting.title('cifar10')}, one core",
                "Q: retraining after every Q queries",
                "seconds per query",
                curves,
                log_x=True,
                log_y=True,
            )
        ],
        findings=[
            Finding(
                "The cost per query of Ind-KNN is constant, that of NoisySGD grows with every retraining.",
                f"A training takes {training:.2f} s, an answer of Ind-KNN {1e3 * times['indknn']['per_query']:.2f} ms, "
                f"and adding or forgetting a person {1e3 * times['indknn']['change']:.2f} ms. NoisySGD is the cheaper "
                f"one if it retrains less than once in {meet:,.0f} queries.",
                True,
            )
        ],
        notes=[SECONDS],
    )


ITEM = Item(
    "figure3a", "Figure 3a: computing time against the frequency of retraining", ("cifar10",), _units, _assemble
)

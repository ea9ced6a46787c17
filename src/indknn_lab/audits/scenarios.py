"""The histories that are audited. The stores are small, because only records near the target matter to an adversary.

Each history is a script that yields events. The target is at `AXIS`, and `near(i)` are different queries around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from indknn.core import accounting
from indknn.settings import Settings
from indknn.types import FloatArray
from indknn_lab.audits.worlds import Add, Ask, Event, Forget, Scenario, Train, View

D = 8
AXIS = np.eye(D)[0]
Script = Callable[[View, np.random.Generator], Iterator[Event]]

_PLAIN = Settings(n_features=D, classes=(0, 1), epsilon=4.0, delta=1e-5, tau=0.5, reuse="none", mode="votes")
BASE = replace(_PLAIN, max_queries=24, sigma2=0.5, free_repeats=False)
MODEL = replace(BASE, mode="model", model_share=0.9)
ENDLESS = replace(MODEL, model_share=0.4, max_queries=None)
NUMBERS = replace(BASE, classes=(), target="number", bounds=(0.0, 1.0), sigma2=2.0)
NUMBERS_MODEL = replace(ENDLESS, classes=(), target="number", bounds=(0.0, 1.0), sigma2=2.0)
LABELS = replace(BASE, max_queries=1000, sigma2=0.3)  # counts are cheap, so the budget goes into votes


def near(i: int) -> FloatArray:
    """The i-th of many different directions close to the target's."""
    query: FloatArray = AXIS.copy()
    query[1 + i % (D - 1)] = 0.02 * (1 + i // (D - 1)) * (-1) ** i
    return query


def around(n: int) -> FloatArray:
    """The first n of these directions."""
    return np.stack([near(i) for i in range(n)])


def natural(seed: int, people: int) -> Iterator[Add]:
    """People with one record each, in random directions on the target's side."""
    if people:
        rng = np.random.default_rng(seed)
        X = AXIS + 0.5 * rng.normal(size=(people, D))
        yield Add(X, tuple(rng.integers(2, size=people).tolist()), tuple(map(str, range(people))))


def target(records: int = 1, labels: tuple[int, ...] = (1,)) -> Add:
    """The event that adds the target's records."""
    X = np.stack([near(3 * i) for i in range(records)])
    return Add(X, tuple(labels[i % len(labels)] for i in range(records)))


def asking(
    queries: int,
    records: int = 1,
    labels: tuple[int, ...] = (1,),
    *,
    repeats: int = 1,
    people: int = 0,
    chosen: bool = True,
) -> Script:
    """Ask around the target, each query `repeats` times, with some other people in the store.

    If not `chosen`, the queries are random.
    """

    def script(view: View, rng: np.random.Generator) -> Iterator[Event]:
        yield from natural(1, people)
        yield target(records, labels)
        for i in range(queries):
            query = near(i) if chosen else AXIS + 0.5 * rng.normal(size=D)
            for _ in range(repeats):
                yield Ask(query)

    return script


def poisoned(queries: int, controlled: bool) -> Script:
    """Before each query the adversary's own people join, one for each label. They make a tie that the target breaks."""

    def script(view: View, rng: np.random.Generator) -> Iterator[Event]:
        yield target()
        for i in range(queries):
            query = near(i) if controlled else AXIS + 0.5 * rng.normal(size=D)
            yield Add(np.stack([query, query]), (0, 1), (str(2 * i), str(2 * i + 1)))
            yield Ask(query)

    return script


def stopping(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """An adaptive script. If the last answer was evidence against the target, the next query is wide, otherwise exact.

    It stops when the adversary is sure.
    """
    yield from natural(2, 5)
    yield target()
    wide = AXIS + 0.8 * np.eye(D)[1]
    for i in range(12):
        if abs(view.loss) > 1.5:
            return
        against = bool(view.labels) and view.labels[-1] != 1
        yield Ask(wide + 0.01 * i * np.eye(D)[2] if against else near(i))


def coming_and_going(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The target is forgotten and comes back again and again, each time with other records."""
    for i in range(5):
        yield Add(near(i)[None, :], (i % 2,))
        yield Ask(near(i))
        yield Ask(near(20 + i))
        yield Forget()


def analysts(names: tuple[str, ...], seen: tuple[str, ...], queries: int) -> Script:
    """Several analysts take turns. The adversary sees what some of them see."""

    def script(view: View, rng: np.random.Generator) -> Iterator[Event]:
        yield target()
        for i in range(queries):
            for name in names:
                yield Ask(near(i), name, seen=name in seen)

    return script


def bystander(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The target is near no query, and other people are exactly at the threshold. The target must change nothing."""
    edge = AXIS + 1.7 * np.eye(D)[1]
    yield Add(np.stack([edge + 0.001 * i * np.eye(D)[2] for i in range(12)]), (1,) * 12, tuple(map(str, range(12))))
    yield Add(np.repeat(-AXIS[None, :] - 0.1 * np.eye(D)[1], 4, axis=0), (0,) * 4)
    for i in range(4):
        yield Ask(near(i))


def joining_later(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The target comes with many others after the model was trained. They are counted, and another round follows."""
    yield from natural(3, 4)
    for i in range(2):
        yield Ask(near(i), "a")
    yield Add(np.stack([near(i) for i in range(40)]), (0, 1) * 20, tuple(map(str, range(100, 140))))
    yield target()
    yield Train()
    for i in range(2, 8):
        yield Ask(near(i), "a")


def rounds(records: int, visits: int) -> Script:
    """The operator trains again and again. Each time the target is forgotten and comes back with many others."""

    def script(view: View, rng: np.random.Generator) -> Iterator[Event]:
        for i in range(visits):
            names = tuple(str(100 * i + k) for k in range(20 * (i + 1)))
            yield Add(np.stack([near(k) for k in range(len(names))]), (0, 1) * (len(names) // 2), names)
            yield target(records, (1, 0))
            yield Train()
            yield Forget()

    return script


def house(view: View, rng: np.random.Generator) -> Iterator[Event]:
    """The unnamed analyst's queries influence the model. Another analyst asks in between. The adversary sees both."""
    yield from natural(3, 4)
    yield target()
    for start in (0, 12):
        for i in range(start, start + 6):
            yield Ask(near(i))
        for i in range(start + 6, start + 12):
            yield Ask(near(i), "a")


def scenarios() -> list[Scenario]:
    """All scenarios. Every configuration here is correct, so no measured bound may exceed its claim."""
    return [*_votes(), *_labels(), *_indexes_and_owners(), *_analysts(), *_sums(), *_numbers()]


def _votes() -> list[Scenario]:
    once = replace(BASE, max_queries=6, sigma2=0.1)
    return [
        Scenario("one query", "all of B in one answer", once, asking(1), exact_noise=True, share=2),
        Scenario("votes", "until exhaustion, votes seen", BASE, asking(6)),
        Scenario("counts", "until exhaustion, counts and labels seen", replace(BASE, sigma2=8.0), asking(9), "counts"),
        Scenario("epsilon 1", "a smaller budget", replace(BASE, epsilon=1.0), asking(5)),
        Scenario("rdp", "the paper's filter", replace(BASE, accountant="rdp"), asking(6)),
        Scenario("exact noise", "the exact sampler end to end", BASE, asking(6), exact_noise=True),
        Scenario("crowd", "others near, who are exhausted too", BASE, asking(6, people=12)),
        Scenario("adaptive", "queries follow the answers; stop when sure", replace(BASE, sigma2=1.0), stopping),
        Scenario("bystander", "near no query", replace(BASE, sigma2=0.1), bystander),
    ]


def _labels() -> list[Scenario]:
    others, at_random = asking(4, people=8), asking(4, people=8, chosen=False)
    return [
        Scenario("labels, poisoned, queries chosen", "a tie broken by the target", LABELS, poisoned(4, True), "labels"),
        Scenario("labels, poisoned, queries natural", "ties, asked at random", LABELS, poisoned(4, False), "labels"),
        Scenario("labels, natural, queries chosen", "others as they come", LABELS, others, "labels"),
        Scenario("labels, natural, queries natural", "nothing chosen", LABELS, at_random, "labels"),
    ]


def _indexes_and_owners() -> list[Scenario]:
    owner = replace(BASE, max_queries=300)
    capped = replace(owner, max_records_per_query=2)
    reuse = replace(BASE, reuse="labels", free_repeats=True)
    lsh = replace(BASE, index="lsh", index_options={"n_tables": 8, "n_bits": 4, "seed": 3})
    sketch = replace(BASE, index="sketch", index_options={"n_bits": 128, "seed": 3})
    rbf = replace(BASE, kernel="rbf", normalize=False, classes=(0, 1, 2))
    return [
        Scenario("lsh", "hash tables", lsh, asking(6, people=4)),
        Scenario("sketch", "sketches", sketch, asking(6, people=4)),
        Scenario("rbf", "distances, three labels", rbf, asking(6)),
        Scenario("five records", "an owner with several records", owner, asking(4, 5, (1, 1, 0))),
        Scenario("capped records", "at most two of six records a query", capped, asking(5, 6)),
        Scenario("reuse", "released answers vote; repeats are free", reuse, asking(5, repeats=2)),
        Scenario("forget and return", "nothing is refunded", BASE, coming_and_going),
    ]


def _analysts() -> list[Scenario]:
    one = replace(BASE, reuse="labels")
    shared = replace(BASE, epsilon=3.0, global_epsilon=4.0)
    both, three = ("a", "b"), ("a", "b", "c")
    pooled, joint = (  # budgets of analysts add up, except for shared releases
        accounting.epsilon((2.0 - share) * BASE.budget, BASE.delta, BASE.accountant)
        for share in (0.0, ENDLESS.shared_budget / ENDLESS.budget)
    )
    return [
        Scenario("one analyst", "sees her own answers only", one, analysts(both, ("b",), 5)),
        Scenario("two analysts pool", "2B", BASE, analysts(both, both, 5), claimed_epsilon=pooled),
        Scenario("global budget", "three pool", shared, analysts(three, three, 3), claimed_epsilon=4.0),
        Scenario("model, one analyst", "the shared part and her own", ENDLESS, analysts(both, ("b",), 4), hurried=True),
        Scenario(
            "model, two analysts pool", "s·B + 2(1-s)·B", ENDLESS, analysts(both, both, 4), "votes", joint, hurried=True
        ),
        Scenario("model, house", "one analyst's queries shape what all see", ENDLESS, house, hurried=True, share=0.4),
    ]


def _sums() -> list[Scenario]:
    whole, rates = replace(MODEL, model_share=0.99), replace(ENDLESS, model_share=0.9)
    return [
        Scenario("model", "nearly all of B in gradients, a count and a card", whole, asking(1), share=0.6),
        Scenario("model, exact noise", "the exact sampler end to end", MODEL, asking(1), exact_noise=True, share=0.3),
        Scenario("model, five records", "one owner", whole, asking(1, 5, (1, 1, 0)), share=0.6),
        Scenario("model, crowd", "others train it too", whole, asking(1, people=12), share=0.6),
        *(
            Scenario(name, about, settings, script, hurried=True, share=0.6)
            for name, about, settings, script in (
                ("model and votes", "gradients, a card, votes", ENDLESS, asking(6, people=5)),
                ("newcomers", "the target joins after the first round", ENDLESS, joining_later),
                ("model, forget and return", "nothing is refunded", ENDLESS, coming_and_going),
                ("rounds", "trained again and again, three records", rates, rounds(3, 4)),
            )
        ),
    ]


def _numbers() -> list[Scenario]:
    """Labels 0 and 1 are the two bounds. The target says the upper one."""
    costly, both = replace(NUMBERS, sigma2=0.1), replace(NUMBERS_MODEL, sigma2=0.1)
    return [
        Scenario("numbers", "noisy sums of weights and of numbers", costly, asking(6)),
        Scenario("numbers, five records", "an owner with several records", costly, asking(4, 5, (1, 1, 0))),
        Scenario("numbers, model and residuals", "gradients, a card, votes", both, asking(6, people=5), hurried=True),
    ]

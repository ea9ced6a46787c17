"""The promise as properties of the whole: random stores, people with 1 to 5 records, and adds, forgets and
queries in any order.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn import IndKNNClassifier
from indknn.answering.predictor import Predictor, Request
from indknn.core.accounting import to_units
from indknn.core.kernels import make_kernel, tau_on_grid
from indknn.core.mechanism import Plan
from indknn.core.noise import SecureNoise, SeededNoise
from indknn.core.quantise import quantise
from indknn.engine import Engine, new_adviser
from indknn.ledger import MemoryLedger
from indknn.records.indexes import make_index
from indknn.records.shard import Shard
from indknn.settings import Settings
from indknn_lab.audits.worlds import hurried

D, CLASSES = 5, [0, 1, 2]
seeds = st.integers(0, 2**32 - 1)
MODES = [
    {"reuse": reuse, "prior": prior}
    for reuse, prior in [
        ("none", "none"),
        ("labels", "none"),
        ("student", "none"),
        ("none", "statistics"),
        ("student", "statistics"),
    ]
]
params = st.builds(
    lambda values, mode: {**values, **mode},
    st.fixed_dictionaries(
        {
            "epsilon": st.sampled_from([0.1, 1.0, 4.0]),
            "max_queries": st.sampled_from([1, 10, 300, None]),
            "tau": st.sampled_from([0.01, 0.3, 0.8]),
            "sigma2": st.sampled_from([0.05, 0.5, 2.0, None]),
            "kernel": st.sampled_from(["cosine", "rbf"]),
            "accountant": st.sampled_from(["gdp", "rdp"]),
            "max_records_per_query": st.sampled_from([None, 1, 2]),
            "prior_share": st.sampled_from([0.05, 0.5, 0.95]),
            "free_repeats": st.booleans(),
            "random_state": st.just(5),
        }
    ),
    st.sampled_from(MODES),
)


@pytest.fixture(autouse=True, scope="module")
def hurry():
    """Lessons, report cards and counts of fresh records after a few answers, so that short histories reach them."""
    with hurried():
        yield


def people(rng, n):
    """Owners with one to five records each."""
    return np.repeat([f"p{i}" for i in range(n)], rng.integers(1, 6, size=n))


@given(seeds, params, st.lists(st.sampled_from("qqqaf"), min_size=1, max_size=25))
@settings(max_examples=60)
def test_nobody_ever_spends_more_than_b_and_spent_only_grows(seed, values, steps):
    rng = np.random.default_rng(seed)
    owners = people(rng, 12)
    X = rng.normal(size=(len(owners), D))
    model = IndKNNClassifier(**values).fit(X, rng.choice(CLASSES, len(owners)), owners=owners)
    model_classes = model.classes_
    spent = dict.fromkeys(owners.tolist(), 0.0)
    for step in steps:
        here = model.owners_.tolist()
        if step == "a":
            name = f"p{rng.integers(20)}"  # a newcomer, one who is here, or one who comes back
            model.partial_fit(rng.normal(size=(2, D)), rng.choice(model_classes, 2), owners=[name, name])
            spent.setdefault(name, 0.0)
        elif step == "f" and here:
            model.forget([here[rng.integers(len(here))]])
        else:
            model.predict(rng.normal(size=(3, D)))
        for owner, rho in zip(spent, model.privacy_spent(list(spent)), strict=True):
            assert spent[owner] <= rho <= model.budget_
            spent[owner] = rho


@given(seeds, st.sampled_from(["cosine", "rbf"]), st.booleans(), st.sampled_from(["labels", "student"]))
def test_who_is_not_near_pays_exactly_nothing(seed, kernel, normalize, reuse):
    rng = np.random.default_rng(seed)
    owners = people(rng, 15)
    X, Q = rng.normal(size=(len(owners), D)), rng.normal(size=(1, D))
    tau = 0.6
    model = IndKNNClassifier(
        tau=tau,
        kernel=kernel,
        normalize=normalize,
        random_state=1,
        classes=CLASSES,
        max_queries=1000,
        reuse=reuse,
        prior="none",
    ).fit(X, rng.choice(CLASSES, len(owners)), owners=owners)
    model.predict(Q)
    if kernel == "cosine":
        kappa = (X @ Q[0]) / np.linalg.norm(X, axis=1) / np.linalg.norm(Q)
    else:
        U, q = (X / np.linalg.norm(X, axis=1)[:, None], Q / np.linalg.norm(Q)) if normalize else (X, Q)
        kappa = np.exp(-((U - q) ** 2).sum(axis=1) / np.exp(1.5))
    for owner, rho in zip(model.owners_, model.privacy_spent(), strict=True):
        near = kappa[owners == owner].max()
        if near < tau - 0.02:  # farther off than quantisation can blur
            assert rho == 0.0
        elif near > tau + 0.02:
            assert rho > 0.0


@given(seeds, st.sampled_from([0.2, 0.9]))
@settings(max_examples=30)
def test_statistics_cost_their_share_at_most_and_nothing_the_second_time(seed, share):
    """Nobody is near the queries, so the sums are all there is to pay for; the newcomer has not been in any."""
    rng = np.random.default_rng(seed)
    owners = people(rng, 10)
    X = np.abs(rng.normal(size=(len(owners), D))) + 0.1
    modes = Settings(D, (0, 1, 2), tau=0.9, max_queries=1000, reuse="none", prior="statistics", prior_share=share)
    engine = Engine(modes, SeededNoise(1))
    engine.add(X, rng.choice(CLASSES, len(owners)), owners.tolist())
    engine.predict(-np.ones((1, D)))
    spent = engine.spent()
    assert ((spent > 0.0) & (spent <= share * modes.budget)).all()
    engine.add(X[:1], [0], ["newcomer"])
    engine.predict(-np.ones((1, D)) - 0.1 * np.eye(D)[:1])
    assert engine.spent().tolist() == [*spent.tolist(), 0.0]


def test_fresh_records_pay_when_they_are_summed_and_those_before_them_do_not_pay_again():
    rng = np.random.default_rng(7)
    share = {"prior": "statistics", "prior_share": 0.2}
    settings = Settings(D, (0, 1), tau=0.999, epsilon=4.0, max_queries=1000, reuse="none", sigma2=50.0, **share)
    engine = Engine(settings, SeededNoise(1))
    engine.add(rng.normal(size=(4, D)), [0, 1, 0, 1], ["a", "b", "c", "d"])
    engine.predict(rng.normal(size=(1, D)))
    first = engine.spent(["a"])[0]
    engine.add(rng.normal(size=(80, D)), rng.integers(2, size=80), list(range(80)))
    price = engine.settings.prior_share * engine.settings.budget
    while engine.shard.epoch < 2:
        engine.predict(rng.normal(size=(1, D)))
    cards = 0.1 * engine.settings.budget * 3  # at 2, 4 and 8 answers at most
    assert engine.spent(["a"])[0] <= first + cards
    assert (engine.spent(list(range(80))) > 0.9 * price).all()
    engine.forget_owners(["a"])
    engine.add(rng.normal(size=(1, D)), [0], ["a"])
    assert engine.spent(["a"])[0] >= first


def select(X, Q, kernel, tau, rows=None):
    """For every query a dict from row of X to kernel bits."""
    rows = np.arange(len(X)) if rows is None else rows
    index = make_index("exact", kernel, X.shape[1])
    index.add(quantise(X[rows]))
    return [dict(zip(rows[s.slots].tolist(), s.kappa.tolist(), strict=True)) for s in index.search(quantise(Q), tau)]


@given(seeds, st.sampled_from([("cosine", True), ("rbf", True), ("rbf", False)]), st.integers(1, 40))
def test_selection_and_kernel_bits_depend_on_the_record_alone(seed, kind, d):
    rng = np.random.default_rng(seed)
    X, Q = rng.normal(size=(70, d)), rng.normal(size=(5, d))
    kernel, tau = make_kernel(kind[0], normalize=kind[1]), tau_on_grid(0.2)
    whole = select(X, Q, kernel, tau)
    some = np.sort(rng.permutation(70)[: rng.integers(1, 70)])
    assert select(X, Q, kernel, tau, some) == [{i: k for i, k in w.items() if i in set(some.tolist())} for w in whole]
    assert select(X, Q, kernel, tau, rng.permutation(70)) == whole
    assert [select(X, Q[i : i + 1], kernel, tau)[0] for i in range(5)] == whole
    X32 = np.asfortranarray(X)  # nor on how the caller lays out memory
    assert select(X32, Q[:, ::-1][:, ::-1], kernel, tau) == whole


@pytest.mark.slow
@given(seeds, params)
@settings(max_examples=30)
def test_one_at_a_time_equals_a_batch_under_the_same_seed(seed, values):
    rng = np.random.default_rng(seed)
    owners = people(rng, 15)
    X, y, Q = rng.normal(size=(len(owners), D)), rng.choice(CLASSES, len(owners)), rng.normal(size=(70, D))
    Q[40] = Q[3]  # an exact repeat inside the batch
    a = IndKNNClassifier(**values).fit(X, y, owners=owners)
    b = IndKNNClassifier(**values).fit(X, y, owners=owners)
    batch = np.concatenate([a.predict(Q[:23]), a.predict(Q[23:])])
    single = np.concatenate([b.predict(Q[i : i + 1]) for i in range(len(Q))])
    assert (batch == single).all()
    assert (a.privacy_spent() == b.privacy_spent()).all()


@pytest.mark.parametrize("prior", ["none", "statistics"])
def test_one_at_a_time_equals_a_batch_where_models_answer_alone(prior):
    modes = Settings(
        D, (0, 1), epsilon=50.0, tau=0.5, reuse="student", prior=prior, free_repeats=False, max_queries=None
    )
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, Q = rng.normal(size=(400, D)), rng.normal(size=(60, D))
        Q[30:40] = Q[3:13]
        seen = []
        for step in (60, 7, 1):
            engine = Engine(modes, SeededNoise(seed))
            engine.add(X, (X[:, 0] > 0).astype(int))
            labels = np.concatenate([engine.predict(Q[i : i + step]) for i in range(0, 60, step)])
            adviser = engine.predictor.adviser()
            seen.append((labels.tolist(), engine.spent().tolist(), adviser.asked))
        assert seen[0] == seen[1] == seen[2]
        assert adviser.asked < adviser.answered


@given(seeds, st.booleans())
@settings(max_examples=20)
def test_several_shards_answer_as_one(seed, advised):
    rng = np.random.default_rng(seed)
    n = 60
    X, y, Q = quantise(rng.normal(size=(n, D))), rng.integers(3, size=n), quantise(rng.normal(size=(20, D)))
    owners = rng.integers(20, size=n)
    kernel, B = make_kernel("cosine"), to_units(0.5)
    plan = Plan(0.3, 3.0, 0.3, 3, contrast=advised)
    modes = Settings(D, (0, 1, 2), epsilon=4.0, max_queries=1000, tau=0.3, reuse="student")
    advice = {"make_adviser": partial(new_adviser, modes)} if advised else {}

    def shard_of(rows):
        shard = Shard(make_index("exact", kernel, D), MemoryLedger(B))
        shard.add(X[rows], y[rows], owners[rows].astype(str).tolist())
        return shard

    one = Predictor([shard_of(np.arange(n))], plan, SeededNoise(seed), **advice)
    three = Predictor([shard_of(np.flatnonzero(owners % 3 == k)) for k in range(3)], plan, SeededNoise(seed), **advice)
    ((a,), (b,)) = (predictor.compute([Request(Q)]) for predictor in (one, three))
    assert (a.labels == b.labels).all()
    for owner in set(owners.tolist()):
        (whole,) = one.shards[0].ledger.total_spent([str(owner)])
        (part,) = three.shards[owner % 3].ledger.total_spent([str(owner)])
        assert whole == part


@pytest.mark.parametrize("drain", ["far away", "forgotten", "exhausted", "one class left"])
def test_where_nobody_votes_every_label_has_positive_frequency(drain):
    """Rule 3, with the noise that serves: the answer must not give away that nobody was there."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, D)) + 3, rng.choice(CLASSES, 60)
    model = IndKNNClassifier(
        epsilon=0.05, tau=0.5, free_repeats=False, max_queries=1, classes=CLASSES, reuse="none"
    ).fit(X, y)
    query = np.full((1, D), 1.0)
    if drain == "far away":
        query = -query
    elif drain == "forgotten":
        model.forget(model.owners_)
    elif drain == "one class left":
        model.forget(np.flatnonzero(y != 0))
    else:
        model.predict(np.repeat(query, 60, axis=0))
        assert np.median(model.privacy_spent()) > 0.9 * model.budget_
    answers = model.predict(np.repeat(query, 300, axis=0))
    assert set(answers.tolist()) == set(CLASSES)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: "-".join(m.values()))
def test_the_secure_path_ends_with_the_same_promise(mode):
    """Nothing above depends on the seed: the same with noise from the system, until all are exhausted."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(200, D)), rng.choice(CLASSES, 200)
    model = IndKNNClassifier(epsilon=1.0, tau=0.01, sigma2=0.1, max_queries=20, **mode).fit(X, y)
    assert isinstance(model._engine.noise, SecureNoise)
    model.predict(rng.normal(size=(300, D)))
    spent = model.privacy_spent()
    assert spent.max() <= model.budget_
    assert np.median(spent) > 0.99 * model.budget_

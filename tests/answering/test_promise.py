"""The promise as properties of the whole: random stores, people with 1 to 5 records, and adds, forgets and
queries in any order.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.histories import inline
from indknn import IndKNNClassifier
from indknn.answering.predictor import Predictor
from indknn.answering.requests import Request
from indknn.core.accounting import from_units
from indknn.core.kernels import make_kernel
from indknn.core.noise import SecureNoise, SeededNoise
from indknn.core.quantise import quantise
from indknn.engine import Engine, new_ledger, new_shard
from indknn.ledger import SHARED
from indknn.records.indexes import make_index
from indknn.settings import Settings
from indknn.types import tau_on_grid
from indknn_lab.audits.scenarios import hurried

D, CLASSES = 5, [0, 1, 2]
seeds = st.integers(0, 2**32 - 1)
ANALYSTS = (None, "ann", "bob")
MODES = [{"reuse": "none", "mode": "votes"}, {"reuse": "labels", "mode": "votes"}, {"reuse": "none", "mode": "model"}]
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
            "model_share": st.sampled_from([0.05, 0.5, 0.95]),
            "free_repeats": st.booleans(),
            "random_state": st.just(5),
        }
    ),
    st.sampled_from(MODES),
)


@pytest.fixture(autouse=True, scope="module")
def hurry():
    """A few steps of training, and a look for newcomers after a few answers, so that short histories reach them."""
    with hurried():
        yield


def people(rng, n):
    """Owners with one to five records each."""
    return np.repeat([f"p{i}" for i in range(n)], rng.integers(1, 6, size=n))


@given(seeds, params, st.lists(st.sampled_from("qqqaft"), min_size=1, max_size=25))
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
        elif step == "t" and values["mode"] == "model":
            for _ in model._engine.train():
                pass
        else:
            model.predict(rng.normal(size=(3, D)), analyst=ANALYSTS[rng.integers(3)])
        ledger = model._engine.ledger
        for who in ANALYSTS:  # each sees what they were told, and what everybody sees
            seen = ledger.spent(list(spent), who) + ledger.spent(list(spent), SHARED)
            assert (seen <= ledger.budget).all()
            assert (from_units(seen) <= model.privacy_spent(list(spent), analyst=who)).all()
            assert who is None or (model.privacy_spent(list(spent), analyst=who) <= model.budget_).all()
        for owner, rho in zip(spent, model.privacy_spent(list(spent)), strict=True):
            assert spent[owner] <= rho
            spent[owner] = rho


@given(seeds, st.sampled_from(["cosine", "rbf"]), st.booleans(), st.sampled_from(["labels", "none"]))
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
        mode="votes",
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
def test_the_model_costs_its_share_at_most_and_newcomers_nothing_before_a_round(seed, share):
    """Nobody is near the queries, so the model is all there is to pay for."""
    rng = np.random.default_rng(seed)
    owners = people(rng, 10)
    X = np.abs(rng.normal(size=(len(owners), D))) + 0.1
    modes = Settings(D, (0, 1, 2), tau=0.9, max_queries=1000, model_share=share)
    engine = Engine(modes, SeededNoise(1))
    engine.add(X, rng.choice(CLASSES, len(owners)), owners.tolist())
    engine.predict(-np.ones((1, D)))
    spent = engine.spent()
    assert ((spent > 0.0) & (spent <= share * modes.budget)).all()
    engine.add(X[:1], [0], ["newcomer"])
    engine.predict(-np.ones((1, D)) - 0.1 * np.eye(D)[:1])
    assert engine.spent().tolist() == [*spent.tolist(), 0.0]


def test_newcomers_pay_when_they_are_trained_on_and_who_returns_goes_on_where_they_stopped():
    rng = np.random.default_rng(7)
    settings = Settings(D, (0, 1), epsilon=4.0, model_share=0.2)
    engine = Engine(settings, SeededNoise(1))
    engine.add(rng.normal(size=(4, D)), [0, 1, 0, 1], ["a", "b", "c", "d"])
    for _ in engine.train():
        pass
    first = engine.spent(["a"])[0]
    assert 0.0 < first <= settings.shared_budget
    engine.add(rng.normal(size=(80, D)), rng.integers(2, size=80), list(range(80)))
    assert not engine.spent(list(range(80))).any()
    for _ in engine.train():
        pass
    assert (engine.spent(list(range(80))) > 0.0).all()
    assert engine.spent().max() <= settings.shared_budget
    engine.forget_owners(["a"])
    gone = engine.spent(["a"])[0]
    engine.add(rng.normal(size=(1, D)), [0], ["a"])
    assert engine.spent(["a"])[0] == gone >= first


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
    # Without public rows the queries of the first request would serve, and they are not the same.
    a, b = (IndKNNClassifier(**values, public=X).fit(X, y, owners=owners) for _ in range(2))
    batch = np.concatenate([a.predict(Q[:23], "ann"), a.predict(Q[23:], "ann")])
    single = np.concatenate([b.predict(Q[i : i + 1], "ann") for i in range(len(Q))])
    assert (batch == single).all()
    assert (a.privacy_spent() == b.privacy_spent()).all()


def test_one_at_a_time_equals_a_batch_where_the_model_answers_alone():
    modes = Settings(D, (0, 1), epsilon=50.0, tau=0.5, sigma2=0.05, free_repeats=False)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, Q = rng.normal(size=(400, D)), rng.normal(size=(60, D))
        Q[30:40], y = Q[3:13], (X[:, 0] + 0.3 * rng.normal(size=400) > 0).astype(int)
        seen, public = [], rng.normal(size=(100, D))
        for step in (60, 7, 1):
            engine = Engine(modes, SeededNoise(seed))
            engine.declare_public(public)
            engine.add(X, y)
            labels = np.concatenate([engine.predict(Q[i : i + step], "ann") for i in range(0, 60, step)])
            adviser = engine.predictor.adviser("ann")
            seen.append((labels.tolist(), engine.spent().tolist(), adviser.asked))
        assert seen[0] == seen[1] == seen[2]
        assert 0 < adviser.asked < adviser.answered


@given(seeds, st.booleans())
@settings(max_examples=20)
def test_several_shards_answer_as_one(seed, advised):
    rng = np.random.default_rng(seed)
    n = 60
    X, y, Q = quantise(rng.normal(size=(n, D))), rng.integers(3, size=n), quantise(rng.normal(size=(20, D)))
    owners = rng.integers(20, size=n)
    modes = Settings(D, (0, 1, 2), epsilon=4.0, tau=0.3, sigma2=0.05, mode="model" if advised else "votes")
    found = []
    for make in (new_shard, inline(3).new_shard):
        shard = make(modes, new_ledger(modes))
        shard.add(X, y, owners.astype(str).tolist())
        predictor = Predictor(shard, modes, SeededNoise(seed))
        labels = [predictor.compute([Request(Q[slice(i, i + 1)])])[0].labels.tolist() for i in range(len(Q))]
        found.append((labels, shard.ledger.total_spent(sorted(set(owners.astype(str)))).tolist()))
    assert found[0] == found[1]


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


@pytest.mark.filterwarnings("ignore:all 300 answers")  # by chance, once in some hundred times
@pytest.mark.parametrize("mode", MODES, ids=lambda m: " and ".join(m.values()))
def test_the_secure_path_ends_with_the_same_promise(mode):
    """Nothing above depends on the seed: the same with noise from the system, until all are exhausted."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(200, D)), rng.choice(CLASSES, 200)
    model = IndKNNClassifier(epsilon=1.0, tau=0.01, sigma2=0.05, max_queries=20, **mode).fit(X, y)
    assert isinstance(model._engine.noise, SecureNoise)
    model.predict(rng.normal(size=(300, D)))
    spent = model.privacy_spent()
    assert spent.max() <= model.budget_
    ledger = model._engine.ledger
    told = ledger.spent(model.owners_.tolist(), None)
    assert np.median(told) > 0.99 * ledger.limit(None)

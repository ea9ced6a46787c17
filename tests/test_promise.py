"""The promise as properties of the whole: random stores, people with 1 to 5 records, and adds, forgets and
queries in any order.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn import IndKNNClassifier
from indknn.accounting import to_units
from indknn.engine import Engine, Settings
from indknn.indexes import make_index
from indknn.kernels import make_kernel, tau_on_grid
from indknn.ledgers import MemoryLedger
from indknn.noise import SecureNoise, SeededNoise
from indknn.predictor import Predictor
from indknn.quantise import quantise
from indknn.shard import Shard
from indknn.types import Plan

D, CLASSES = 5, [0, 1, 2]
seeds = st.integers(0, 2**32 - 1)
params = st.fixed_dictionaries(
    {
        "epsilon": st.sampled_from([0.1, 1.0, 4.0]),
        "max_queries": st.sampled_from([1, 10, 300]),
        "tau": st.sampled_from([0.01, 0.3, 0.8]),
        "sigma2": st.sampled_from([0.05, 0.5, 2.0]),
        "kernel": st.sampled_from(["cosine", "rbf"]),
        "accountant": st.sampled_from(["gdp", "rdp"]),
        "max_records_per_query": st.sampled_from([None, 1, 2]),
        "reuse": st.booleans(),
        "free_repeats": st.booleans(),
        "random_state": st.just(5),
    }
)


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


@given(seeds, st.sampled_from(["cosine", "rbf"]), st.booleans())
def test_who_is_not_near_pays_exactly_nothing(seed, kernel, normalize):
    rng = np.random.default_rng(seed)
    owners = people(rng, 15)
    X, Q = rng.normal(size=(len(owners), D)), rng.normal(size=(1, D))
    tau = 0.6
    model = IndKNNClassifier(
        tau=tau, kernel=kernel, normalize=normalize, random_state=1, classes=CLASSES, max_queries=1000
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


def select(X, Q, kernel, tau, rows=None):
    """For every query a dict from row of X to kernel bits."""
    rows = np.arange(len(X)) if rows is None else rows
    index = make_index("exact", kernel, X.shape[1])
    index.add(quantise(X[rows]))
    return [dict(zip(rows[s.slots].tolist(), s.kappa.tolist(), strict=True)) for s in index.select(quantise(Q), tau)]


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


@given(seeds, params)
@settings(max_examples=30)
def test_one_at_a_time_equals_a_batch_under_the_same_seed(seed, values):
    rng = np.random.default_rng(seed)
    owners = people(rng, 15)
    X, y, Q = rng.normal(size=(len(owners), D)), rng.choice(CLASSES, len(owners)), rng.normal(size=(70, D))
    Q[40] = Q[3]  # an exact repeat inside the batch
    a = IndKNNClassifier(**values).fit(X, y, owners=owners)
    b = IndKNNClassifier(**values).fit(X, y, owners=owners)
    batch = a.predict(Q)
    single = np.concatenate([b.predict(Q[i : i + 1]) for i in range(len(Q))])
    assert (batch == single).all()
    assert (a.privacy_spent() == b.privacy_spent()).all()


@given(seeds)
@settings(max_examples=20)
def test_several_shards_answer_as_one(seed):
    rng = np.random.default_rng(seed)
    n = 60
    X, y, Q = quantise(rng.normal(size=(n, D))), rng.integers(3, size=n), quantise(rng.normal(size=(20, D)))
    owners = rng.integers(20, size=n)
    kernel, B = make_kernel("cosine"), to_units(0.5)
    plan = Plan(0.3, 3.0, 0.3, 3)

    def shard_of(rows):
        shard = Shard(make_index("exact", kernel, D), MemoryLedger(B))
        shard.add(X[rows], y[rows], owners[rows].tolist())
        return shard

    one = Predictor([shard_of(np.arange(n))], plan, SeededNoise(seed))
    three = Predictor([shard_of(np.flatnonzero(owners % 3 == k)) for k in range(3)], plan, SeededNoise(seed))
    assert (one.predict(Q) == three.predict(Q)).all()
    for owner in set(owners.tolist()):
        (whole,) = one.shards[0].ledger.total_spent([owner])
        (part,) = three.shards[owner % 3].ledger.total_spent([owner])
        assert whole == part


@pytest.mark.parametrize("drain", ["far away", "forgotten", "exhausted", "one class left"])
def test_where_nobody_votes_every_label_has_positive_frequency(drain):
    """Rule 3, with the noise that serves: the answer must not give away that nobody was there."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, D)) + 3, rng.choice(CLASSES, 60)
    model = IndKNNClassifier(epsilon=0.05, tau=0.5, free_repeats=False, max_queries=1, classes=CLASSES).fit(X, y)
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


def test_the_secure_path_ends_with_the_same_promise():
    """Nothing above depends on the seed: the same with noise from the system, until all are exhausted."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(200, D)), rng.choice(CLASSES, 200)
    model = IndKNNClassifier(epsilon=1.0, tau=0.01, sigma2=0.1, max_queries=20).fit(X, y)
    assert isinstance(model._engine.noise, SecureNoise)
    model.predict(rng.normal(size=(300, D)))
    spent = model.privacy_spent()
    assert spent.max() <= model.budget_
    assert np.median(spent) > 0.99 * model.budget_


class Kept:
    """A journal in memory."""

    def __init__(self):
        self.noted = []

    def note(self, *release):
        self.noted.append(release)

    def flush(self):
        pass


@pytest.mark.parametrize("prior", ["none", "statistics"])
def test_an_adviser_read_back_plans_as_the_one_that_never_stopped(prior):
    rng, kept = np.random.default_rng(0), Kept()
    X = rng.normal(size=(300, 4))
    modes = Settings(4, (0, 1), epsilon=2.0, max_queries=None, reuse="student", prior=prior)
    old, new = Engine(modes, SeededNoise(1), journal=kept), Engine(modes, SeededNoise(1))
    old.add(X, (X[:, 0] > 0).astype(int))
    old.predict(rng.normal(size=(300, 4)))
    for analyst, query, label, release in kept.noted:
        new.predictor.remember(analyst, None if label < 0 else query, label, release)
    a, b = old.predictor.adviser(), new.predictor.adviser()
    assert b.due() is None
    b.advise(modes.quantise(X[:1], "q"))
    for name in ("tau", "since", "answered", "asked", "left", "_next_card", "_fresh_at"):
        assert getattr(a, name) == getattr(b, name), name
    assert (a.density.records, a.sigma2(), a.trust.answers) == (b.density.records, b.sigma2(), b.trust.answers)
    assert new.shard.epoch == old.shard.epoch

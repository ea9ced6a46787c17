"""The scikit-learn face: what users meet."""

import copy
import os
import pickle
import threading
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import blobs
from indknn import IndKNNClassifier, PrivacyError, PrivacyWarning, UnknownOwnerError, budget
from indknn.core.calibrate import DEFAULT_TAU, MANY_CLASSES
from indknn.errors import InvalidInputError, LedgerError
from indknn.models.shared_model import MOST_ROWS
from indknn.settings import MODEL_SHARE
from indknn.tables import infer
from indknn_lab.baselines import public_rows_only

CANNOT_HOLD = {
    "check_fit_idempotent": "fitting again refunds nothing, so the second model has less to spend",
    "check_supervised_y_2d": "fits twice and compares answers: the second fit has less to spend",
    "check_estimators_dtypes": "feeds a zero vector, which has no direction and is refused",
}


@parametrize_with_checks([IndKNNClassifier()], expected_failed_checks=lambda _: CANNOT_HOLD)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture
def model(data):
    X, y, _, _ = data
    return IndKNNClassifier(tau=0.5, random_state=0).fit(X, y)


def state(model):
    """All that an outsider could notice of a model."""
    return (
        model.owners_.tolist(),
        model.record_ids_.tolist(),
        model.privacy_spent().tolist(),
        model.classes_.tolist(),
    )


@pytest.mark.usefixtures("known_noise")
def test_it_learns(data):
    X, y, Q, yq = data
    for kernel, tau in (("cosine", 0.6), ("rbf", 0.83)):  # the same distance
        model = IndKNNClassifier(epsilon=1.0, kernel=kernel, tau=tau, max_queries=300, sigma2=2.0).fit(X, y)
        assert model.score(Q, yq) > 0.95
    names = np.array(["ant", "bee", "cat"])
    model = IndKNNClassifier(epsilon=1.0, tau=0.6, max_queries=300, sigma2=2.0).fit(X, names[y])
    assert (model.predict(Q) == names[yq]).mean() > 0.95
    assert model.classes_.tolist() == ["ant", "bee", "cat"]


@pytest.mark.usefixtures("known_noise")
def test_defaults_need_no_tuning(data):
    X, y, Q, yq = data
    model = IndKNNClassifier().fit(X, y)
    assert not hasattr(model, "tau_")
    assert model.score(Q, yq) > 0.8
    assert 0 < model.tau_ <= 1
    assert model.budget_ == budget(1.0, 1e-5)


@pytest.mark.usefixtures("known_noise")
def test_algorithm_3_is_two_words_away(data):
    X, y, Q, yq = data
    model = IndKNNClassifier(max_queries=1000, reuse="none").fit(X, y)
    assert model.sigma1_ == pytest.approx(np.sqrt(1000 / 6 / model.budget_))
    assert model.score(Q, yq) > 0.8


def test_tau_is_chosen_from_the_queries_alone_and_then_fixed(data):
    X, y, Q, _ = data
    taus = set()
    for rows in (slice(0, 9000), slice(0, 30), slice(1000, 1001)):
        model = IndKNNClassifier(random_state=0, classes=[0, 1, 2]).fit(X[rows], y[rows])
        model.predict(Q)
        taus.add(model.tau_)
    assert len(taus) == 1
    before = model.tau_
    model.predict(-Q[:100])
    assert model.tau_ == before


def test_too_few_queries_for_tau_take_the_default_and_say_so(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(reuse="none", random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="3 queries are too few"):
        model.predict(Q[:3])
    assert model.tau_ == DEFAULT_TAU


def test_a_seed_warns_once_and_none_is_silent(data):
    X, y, Q, _ = data
    with pytest.warns(PrivacyWarning, match="random_state=3 makes the noise reproducible") as caught:
        model = IndKNNClassifier(tau=0.5, random_state=3, classes=[0, 1, 2]).fit(X, y)
        model.partial_fit(X[:2], y[:2])
        model.predict(Q)
        model.fit(X, y)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IndKNNClassifier(tau=0.5, classes=[0, 1, 2]).fit(X, y).predict(Q)


def test_same_seed_same_answers_other_seed_other_answers(data):
    X, y, Q, _ = data
    answers = [IndKNNClassifier(epsilon=0.02, tau=0.5, random_state=s).fit(X, y).predict(Q) for s in (1, 1, 2)]
    assert (answers[0] == answers[1]).all()
    assert (answers[0] != answers[2]).any()


def test_predicting_spends_and_repeating_does_not(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.5, reuse="none", random_state=0).fit(X, y)
    first = model.predict(Q[:50])
    spent = model.privacy_spent()
    assert spent.sum() > 0
    assert (model.predict(Q[:50]) == first).all()
    assert (model.predict(Q[:50][::-1]) == first[::-1]).all()
    assert (model.privacy_spent() == spent).all()
    model.predict(Q[50:60])
    assert model.privacy_spent().sum() > spent.sum()


def test_repeats_stay_the_same_after_the_data_changed(model, data):
    """Answering afresh only when something changed would tell, without noise, that it has."""
    Q = data[2]
    first = model.predict(Q[:50])
    model.forget(model.owners_)
    assert (model.predict(Q[:50]) == first).all()


def test_repeats_can_be_switched_off(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.5, reuse="none", random_state=0, free_repeats=False).fit(X, y)
    model.predict(Q[:5])
    spent = model.privacy_spent().sum()
    model.predict(Q[:5])
    assert model.privacy_spent().sum() > spent


@pytest.mark.parametrize("reuse", ["labels", "none"])
def test_analysts_have_own_ledgers_answers_and_reuse(data, reuse):
    X, y, Q, _ = data
    model = IndKNNClassifier(epsilon=0.5, tau=0.5, reuse=reuse, random_state=0).fit(X, y)
    model.predict(Q[:60], analyst="alice")
    alice = model.privacy_spent(analyst="alice")
    assert model.privacy_spent(analyst="bob").sum() == 0
    alone = IndKNNClassifier(epsilon=0.5, tau=0.5, reuse=reuse, random_state=0).fit(X, y)
    alone._engine.predictor.noise = model._engine.predictor.noise = _FixedNoise()
    # bob's answers are the same whether or not alice was here before: nothing of hers reaches him
    assert (model.predict(Q[:60], analyst="bob") == alone.predict(Q[:60], analyst="bob")).all()
    assert (model.privacy_spent(analyst="bob") == alone.privacy_spent(analyst="bob")).all()
    assert (model.privacy_spent(analyst="alice") == alice).all()
    assert model.privacy_spent() == pytest.approx(alice + model.privacy_spent(analyst="bob"))


class _FixedNoise:
    secure = False

    def draw(self, scale, size):
        return np.rint(np.linspace(-1, 1, size) * float(scale)).astype(np.int64)


def test_a_global_budget_bounds_all_analysts_together(data):
    X, y, Q, _ = data
    spendthrift = {"tau": 0.3, "sigma2": 0.1, "max_queries": 50, "reuse": "none"}
    model = IndKNNClassifier(epsilon=1.0, global_epsilon=1.5, **spendthrift, random_state=0).fit(X, y)
    for analyst in ("a", "b", "c"):
        model.predict(Q, analyst=analyst)
        assert model.privacy_spent(analyst=analyst).max() <= model.budget_
    assert model.budget_ < model.privacy_spent().max() <= budget(1.5, 1e-5)


def test_reuse_and_the_shared_model_help_an_exhausted_store(data):
    X, y, Q, yq = data
    scores = {}
    for reuse in ("none", "labels", None):
        model = IndKNNClassifier(epsilon=1.0, tau=0.6, max_queries=40, sigma2=0.2, reuse=reuse, random_state=0)
        scores[reuse] = model.fit(X, y).score(Q, yq)
    assert min(scores["labels"], scores[None]) > scores["none"] + 0.1


def test_forget_and_come_back_refunds_nothing(model, data):
    X, y, Q, _ = data
    model.predict(Q)
    owner = int(model.owners_[model.privacy_spent().argmax()])
    (rho,) = model.privacy_spent([owner])
    assert rho > 0
    assert model.forget([owner]) == 1
    assert str(owner) not in model.owners_
    assert model.privacy_spent([owner]) == [rho]
    assert model.forget([owner]) == 0  # forgetting twice is no error
    model.partial_fit(X[owner : owner + 1], y[owner : owner + 1], owners=[owner])
    assert model.privacy_spent([owner]) == [rho]
    assert str(owner) in model.owners_


def test_forget_by_record(data):
    X, y, _, _ = data
    model = IndKNNClassifier(tau=0.5, random_state=0).fit(X[:6], y[:6], owners=["a", "a", "b", "a", "b", "c"])
    assert model.record_ids_.tolist() == [0, 1, 2, 3, 4, 5]
    assert model.forget(records=[0, 3]) == 2
    assert model.owners_.tolist() == ["a", "b", "c"]
    assert model.forget(records=1) == 1
    assert model.owners_.tolist() == ["b", "c"]  # the last record of a is gone
    with pytest.raises(ValueError, match="unknown record id 1"):
        model.forget(records=[2, 1])
    assert model.record_ids_.tolist() == [2, 4, 5]
    model.partial_fit(X[:2], y[:2], owners=["a", "d"])
    new = set(model.new_record_ids_.tolist())
    assert not new & {0, 1, 2, 3, 4, 5}  # ids never repeat, though slots do
    assert model.forget("a") == 1
    assert len(model.record_ids_) == 4


def test_rows_without_owners_are_new_people(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.2, classes=[0, 1, 2], random_state=0)
    model.fit(X[:4], y[:4], owners=[0, "5", "x", "007"])
    model.predict(Q)
    model.forget([5])
    model.partial_fit(X[4:6], [0, 1])
    assert model.owners_.tolist() == ["0", "6", "x", "007", "7"]
    assert model.privacy_spent([6, 7]).tolist() == [0, 0]
    model.partial_fit(X[6:8], [0, 1], owners="each-row")
    assert model.owners_.tolist()[-2:] == ["8", "9"]


def test_fitting_again_drops_records_but_not_what_was_spent(model, data):
    X, y, Q, _ = data
    model.predict(Q)
    spent = model.privacy_spent()
    model.fit(X[:100], y[:100])
    assert (model.privacy_spent() >= spent[:100]).all()  # a refit begins a round, and refunds nothing
    assert model.privacy_spent([8999]) == spent[8999]
    model.set_params(epsilon=0.01).fit(X, y)
    before = model.privacy_spent()
    model.predict(-Q)
    over = before > model.budget_
    assert over.any()
    assert (model.privacy_spent()[over] == before[over]).all()
    assert clone(model).fit(X, y).privacy_spent().sum() == 0  # another object is another ledger


def test_partial_fit_equals_fit(data):
    X, y, Q, _ = data
    whole = IndKNNClassifier(tau=0.5, random_state=0).fit(X, y)
    parts = IndKNNClassifier(tau=0.5, random_state=0)
    parts.partial_fit(X[:10], y[:10], classes=[2, 1, 0])
    for low in range(10, 9000, 2997):
        parts.partial_fit(X[low : low + 2997], y[low : low + 2997])
    assert (whole.predict(Q) == parts.predict(Q)).all()
    assert state(whole) == state(parts)


def test_labels_that_nobody_holds_can_be_declared(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(epsilon=0.01, tau=0.5, classes=range(6), reuse="none", random_state=0).fit(X, y)
    assert model.classes_.tolist() == [0, 1, 2, 3, 4, 5]
    assert set(model.predict(Q).tolist()) == {0, 1, 2, 3, 4, 5}  # a tiny epsilon answers with anything


def test_a_public_center_moves_records_and_queries_alike(data):
    X, y, Q, yq = data
    far = np.full(12, 50.0)
    options = {"tau": 0.5, "reuse": "none", "random_state": 0}
    plain = IndKNNClassifier(**options).fit(X, y).predict(Q)
    moved = IndKNNClassifier(**options, center=far).fit(X + far, y).predict(Q + far)
    assert (plain == moved).mean() > 0.98
    lost = IndKNNClassifier(**options).fit(X + far, y)
    assert lost.score(Q + far, yq) < 0.9


BAD = [
    ({}, lambda X, y: (np.where(X[3, 2] == X, np.nan, X), y), "NaN"),
    ({}, lambda X, y: (np.where(X[3, 2] == X, np.inf, X), y), "infinity"),
    ({}, lambda X, y: (X[:, :11], y), "11 features.*12 features|X has 11"),
    ({}, lambda X, y: (X * (np.arange(len(X)) != 7)[:, None], y), "row 7 of X is a zero vector"),
    ({}, lambda X, y: (X, np.where(np.arange(len(X)) == 5, 9, y)), "unknown label.*9.*classes are"),
    ({}, lambda X, y: (X, y[:-1]), "inconsistent"),
    ({"owners": ["a"]}, lambda X, y: (X, y), "one owner per row: 20 rows, got 1"),
    ({"owners": [None] * 20}, lambda X, y: (X, y), "row 0: the owner must be text or a whole number, got None"),
    ({"owners": [1.5] * 20}, lambda X, y: (X, y), "row 0: the owner must be.*1.5"),
    ({"owners": [True] * 20}, lambda X, y: (X, y), "row 0: the owner must be.*True"),
    ({"classes": [0, 1]}, lambda X, y: (X, y), r"classes must stay \[0, 1, 2\], got \[0, 1\]"),
]


@pytest.mark.parametrize(("kwargs", "spoil", "words"), BAD)
def test_bad_records_change_nothing(model, data, kwargs, spoil, words):
    X, y, Q, _ = data
    model.predict(Q[:20])
    before = state(model)
    with pytest.raises(ValueError, match=words):
        model.partial_fit(*spoil(X[:20], y[:20]), **kwargs)
    assert state(model) == before


@pytest.mark.parametrize(
    ("kwargs", "spoil", "words"),
    [b for b in BAD if "classes" not in b[0] and "11 features" not in b[2] and "unknown label" not in b[2]],
)
def test_a_bad_fit_leaves_the_old_one_in_force(model, data, kwargs, spoil, words):
    X, y, Q, _ = data
    model.predict(Q[:20])
    before = state(model), model.n_features_in_, model.tau_
    with pytest.raises(ValueError, match=words):
        model.fit(*spoil(X[:20], y[:20]), **kwargs)
    assert (state(model), model.n_features_in_, model.tau_) == before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be at least 0.0001 and below 1000, got 0.0"),
        ({"epsilon": -1}, "epsilon must be .*got -1"),
        ({"delta": 0.0}, "delta must be at least 1e-15 and below 1, got 0.0"),
        ({"delta": 1.0}, "delta must be .*got 1.0"),
        ({"tau": 0.0}, "tau must be above 0 and at most 1, got 0.0"),
        ({"tau": -0.5}, "tau must be .*got -0.5"),
        ({"tau": 1.01}, "tau must be .*got 1.01"),
        ({"sigma2": 0}, "sigma2 must be above 0 and at most 1048576, got 0"),
        ({"max_queries": 0}, "max_queries must be a whole number, at least 1, got 0"),
        ({"kernel": "linear"}, "kernel must be one of 'cosine', 'rbf', got 'linear'"),
        ({"accountant": "zcdp"}, "accountant must be one of 'gdp', 'rdp', got 'zcdp'"),
        ({"index": "hnsw"}, "index must be one of 'exact', 'lsh', 'sketch', got 'hnsw'"),
        ({"bandwidth": 0.0}, "bandwidth must be at least 1e-06 and at most 1000000, got 0.0"),
        ({"random_state": "dice"}, "random_state must be None, a seed.*got 'dice'"),
        ({"store": 7}, "store must be a path or None, got 7"),
        ({"center": np.zeros(3)}, "center must have one entry per feature of X: 12"),
        ({"classes": [0, 1]}, "unknown label.*2"),
        ({"classes": []}, r"classes must be one or more labels.*\[\]"),
        ({"classes": np.array([0, None])}, "classes must be one or more labels"),
        ({"center": [np.nan] * 12}, "center must be a vector of finite numbers"),
        ({"center": ["a"] * 12}, "center must be a vector of finite numbers"),
    ],
)
def test_bad_parameters_are_named_and_nothing_is_fitted(data, values, words):
    X, y, _, _ = data
    model = IndKNNClassifier(**values)
    with pytest.raises(ValueError, match=words):
        model.fit(X, y)
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "n_features_in_")


def test_a_fitted_object_stays_with_its_store(data, tmp_path):
    X, y, _, _ = data
    path = tmp_path / "a.store"
    model = IndKNNClassifier(tau=0.5).fit(X[:30], y[:30], owners=range(30))
    with pytest.raises(ValueError, match="store must stay None"):
        model.set_params(store=path).fit(X[:30], y[:30], owners=range(30))
    for call in (
        lambda: model.partial_fit(X[:1], y[:1], owners=[99]),
        lambda: model.predict(X[:1]),
        lambda: model.forget([1]),
    ):
        with pytest.raises(ValueError, match="store must stay None"):
            call()
    assert not path.exists()
    model = IndKNNClassifier(tau=0.5, store=path).fit(X[:30], y[:30], owners=range(30))
    for other in (None, tmp_path / "b.store"):
        with pytest.raises(ValueError, match="store must stay .*a.store"):
            model.set_params(store=other).fit(X[:30], y[:30], owners=range(30))
    model.set_params(store=str(path)).fit(X[:20], y[:20], owners=range(20))
    assert len(model.record_ids_) == 20
    model._engine.close()
    with pytest.raises(ValueError, match="made with other parameters: tau differ"):
        IndKNNClassifier(tau=0.6, store=path).fit(X[:30], y[:30], owners=range(30))
    again = IndKNNClassifier(tau=0.5, store=path).fit(X[:30], y[:30], owners=range(30))  # it is not locked
    assert len(again.record_ids_) == 30
    again._engine.close()


def test_bad_queries_charge_nobody(model, data):
    Q = data[2][:10].copy()
    bad = {"NaN": Q.copy(), "zero vector": Q.copy(), "12 features": Q[:, :11]}
    bad["NaN"][9, 0] = np.nan
    bad["zero vector"][9] = 0
    for words, queries in bad.items():
        with pytest.raises(ValueError, match=words):
            model.predict(queries)
    with pytest.raises(ValueError, match="analyst must be a str or None, got 7"):
        model.predict(Q, analyst=7)
    assert model.privacy_spent().sum() == 0


def test_unknown_owners_are_named_and_nobody_is_forgotten(model):
    before = state(model)
    for call in (model.forget, model.privacy_spent):
        with pytest.raises(UnknownOwnerError, match="unknown owner '99999'"):
            call([0, 99999])
    with pytest.raises(ValueError, match="one of owners, records=... and record_ids="):
        model.forget()
    with pytest.raises(ValueError, match="records must be given by their numbers"):
        model.forget(records=["a"])
    assert state(model) == before


def test_fitting_again_needs_names_once_people_have_spent(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.5).fit(X, y)
    model.fit(X, y)  # nothing spent yet
    model.predict(Q[:20])
    before = state(model)
    with pytest.raises(PrivacyError, match="cannot tell who is who"):
        model.fit(X, y)
    with pytest.raises(PrivacyError, match="random_state must stay None"):
        model.set_params(random_state=0).fit(X, y, owners=range(len(X)))
    assert state(model) == before
    model.set_params(random_state=None).fit(X[::-1], y[::-1], owners=range(len(X))[::-1])
    spent = dict(zip(before[0], before[2], strict=True))
    # Nothing was refunded, and the round that a refit begins (rule 17) was charged on top.
    assert (model.privacy_spent(before[0]) >= list(spent.values())).all()


def test_names_are_plain_whatever_class_they_come_in(data):
    class Pid(str):
        __slots__ = ()

    class Number(int):
        def __str__(self):
            return "x"

    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.1, random_state=0, classes=[0, 1, 2], max_queries=20)
    model.fit(X[:4], y[:4], owners=[Pid("ann"), Number(5), np.str_("bob"), np.int64(7)])
    model.predict(Q)
    spent = model.privacy_spent(["ann", 5, "bob", 7])
    assert (spent > 0).all()
    model.forget(["ann", 5, "bob", 7])
    model.partial_fit(X[:4], y[:4], owners=["ann", np.int8(5), Pid("bob"), Number(7)])
    assert (model.privacy_spent(["ann", 5, "bob", 7]) == spent).all()
    with pytest.raises(ValueError, match="row 0: the owner must be a number below"):
        model.partial_fit(X[:1], y[:1], owners=[10**5000])


def test_names_survive_owners_(data):
    X, y, _, _ = data
    names = ["a\0", "a", "ü"]
    model = IndKNNClassifier(tau=0.1, random_state=0, classes=[0, 1, 2]).fit(X[:3], y[:3], owners=names)
    assert model.owners_.tolist() == names
    assert model.forget(model.owners_) == 3


def test_a_forked_process_refuses_to_answer(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.5).fit(X, y)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            model.predict(Q[:3])
            os.write(write, b"answered")
        except PrivacyError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"forked" in os.read(read, 1000)
    os.close(read)
    os.close(write)
    assert len(model.predict(Q[:3])) == 3


def test_an_interrupted_change_refunds_nothing_and_stops_the_store(data, monkeypatch):
    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.1, random_state=0, classes=[0, 1, 2], max_queries=20)
    model.fit(X[:3], y[:3], owners=["a", "b", "c"])
    model.predict(Q)
    spent = model.privacy_spent(["a", "b", "c"])

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model._engine.ledger), "digest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.forget(["a"])
    assert (model.privacy_spent(["a", "b", "c"]) == spent).all()
    for call in (lambda: model.predict(Q[:1] + 1), lambda: model.partial_fit(X[:1], y[:1], owners=["zoe"])):
        with pytest.raises(LedgerError, match="interrupted halfway"):
            call()


def test_a_fit_that_fails_late_leaves_the_old_one(data):
    X, y, Q, _ = data
    model = IndKNNClassifier(tau=0.5, random_state=0).fit(X, y)
    model.predict(Q[:5])
    before = state(model)
    for values in ({"epsilon": 1e5}, {"max_queries": 10**30}, {"sigma2": 1e13}, {"bandwidth": 1e-200, "kernel": "rbf"}):
        with pytest.raises(ValueError, match="must be"):
            clone(model).set_params(**values).fit(X, y)
        old = {name: getattr(model, name) for name in values}
        with pytest.raises(ValueError, match="must be"):
            model.set_params(**values).fit(X, y)
        model.set_params(**old)
        assert state(model) == before


def test_hundreds_of_analysts_do_not_wrap_the_ledger_around(data):
    X, y, _, _ = data
    model = IndKNNClassifier(epsilon=50, global_epsilon=60, tau=0.1, mode="votes", classes=[0, 1, 2]).fit(X[:3], y[:3])
    ledger = model._engine.ledger
    slots = ledger.slots_of(["0"])
    ledger.global_budget = None
    for i in range(500):
        ledger.charge(slots, np.array([ledger.budget]), f"analyst {i}")
    assert ledger.total_spent(["0"])[0] > 100 * ledger.budget
    ledger.global_budget = ledger.budget * 2
    assert ledger.remaining(slots, "another").tolist() == [0]


def test_a_live_ledger_cannot_be_copied_but_an_experiment_can(data):
    X, y, Q, _ = data
    secure = IndKNNClassifier(tau=0.5)
    assert pickle.loads(pickle.dumps(secure)).tau == 0.5  # nothing in it yet
    secure.fit(X, y)
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(PrivacyError, match="each copy would spend everybody's budget anew"):
            duplicate(secure)
    assert clone(secure).tau == 0.5
    seeded = IndKNNClassifier(tau=0.5, random_state=0).fit(X, y)
    twin = pickle.loads(pickle.dumps(seeded))
    assert (twin.predict(Q) == seeded.predict(Q)).all()
    twin.partial_fit(X[:3], y[:3]).forget([0])


def test_works_in_scikit_learns_tools():
    X, y = blobs(2000, 2, 8)
    scores = cross_val_score(IndKNNClassifier(tau=0.6, sigma2=3.0, random_state=0), X, y, cv=8)
    assert scores.mean() > 0.9


def test_threads_share_one_ledger():
    X, y = blobs(500, 2, 6)
    model = IndKNNClassifier(epsilon=0.3, tau=0.2, sigma2=0.1, max_queries=20).fit(X, y)
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for i in range(15):
                model.predict(rng.normal(size=(3, 6)))
                model.partial_fit(rng.normal(size=(1, 6)), [0], owners=[f"{seed}-{i}"])
                model.forget([f"{seed}-{i}"])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert model.privacy_spent().max() <= model.budget_
    assert len(model.record_ids_) == 500


def test_the_model_starts_from_labelled_public_rows():
    """Given as a pair, or as a table with the label column of the schema. A pair of rows has no labels."""
    X, y = blobs(700, 3, 6, seed=3)
    names = [f"c{i}" for i in range(6)]
    table = {name: X[:, i] for i, name in enumerate(names)}
    sample = {**{name: column[:200] for name, column in table.items()}, "kind": y[:200]}
    schema = infer(sample, label="kind").schema
    private = {**{name: column[200:400] for name, column in table.items()}, "kind": y[200:400]}
    made = {
        "pair": IndKNNClassifier(0.1, public=(X[:200], y[:200]), random_state=1).fit(X[200:400], y[200:400]),
        "table": IndKNNClassifier(0.1, schema=schema, public=sample, random_state=1).fit(private),
        "without": IndKNNClassifier(0.1, public=X[:200], random_state=1).fit(X[200:400], y[200:400]),
    }
    starts = {name: one.warm_up()._engine.predictor.model.shown.rule.start for name, one in made.items()}
    assert [name for name, start in starts.items() if start is not None] == ["pair", "table"]
    alone = public_rows_only(X[:200], y[:200]).score(X[400:], y[400:])
    assert (made["pair"].predict(X[400:]) == y[400:]).mean() > alone - 0.05
    two = IndKNNClassifier(8.0, public=(X[0], X[1]), random_state=1).fit(X[200:400], y[200:400])
    assert two._engine.predictor.public.labels is None
    with pytest.raises(InvalidInputError, match="one label per row"):
        IndKNNClassifier(1.0, public=(X[:200], y[:100]), random_state=1).fit(X[200:400], y[200:400])


def test_of_many_labelled_public_rows_some_are_kept_with_their_labels(tmp_path):
    X, y = blobs(1800, 3, 6, seed=3)
    twice = np.repeat(X[:1500], 2, axis=0), np.repeat(y[:1500], 2)
    kept = []
    for store in (None, tmp_path / "people.store"):
        model = IndKNNClassifier(public=twice, classes=[0, 1, 2], store=store).fit(X[1500:], y[1500:], range(300))
        kept.append(model._memory.predictor.public)
        assert model.warm_up()._memory.predictor.model._start is not None
    assert len(kept[0].values) == MOST_ROWS
    assert (kept[0].labels == y[:MOST_ROWS]).all()
    assert kept[0].body() == kept[1].body()


def test_other_classes_do_not_divide_budgets_anew():
    """The default share depends on how many classes there are. People who have spent budget keep the first one."""
    X, y = blobs(40, 2, 3, seed=1)
    model = IndKNNClassifier(1.0, tau=0.3, classes=[0, 1], random_state=1).fit(X, y, range(40))
    model.predict(X[:1])
    model.set_params(classes=list(range(MANY_CLASSES))).fit(X, y, range(40))
    assert model._engine.settings.model_share == MODEL_SHARE

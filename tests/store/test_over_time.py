"""Budgets over time: pacing and renewal. The clock is the tests' own, and nobody sleeps."""

import numpy as np
import pytest

from cluster.histories import inline
from conftest import blobs
from golden.transcripts import Replayed
from helpers.asking import declared
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.core import clock
from indknn.core.accounting import budget, epsilon
from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.errors import InvalidInputError, PrivacyError
from indknn.ledger import SHARED
from indknn.ledger.figures import added_up, guarantee, model_promise, statement
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.reports import status, stream
from indknn.store.verify import problems

X, Y = blobs(760, 3, 8)
NAMES = [f"p{i % 40}" for i in range(600)]
PLAIN = {"n_features": 8, "classes": (0, 1, 2), "tau": 0.3, "sigma2": 0.1, "max_queries": 200, "reuse": "none"}
MODEL = {"n_features": 8, "classes": (0, 1, 2), "tau": 0.3, "sigma2": 0.02}
RENEWED = {"renew_days": 100, "i_understand": "epsilon per period"}
DAY = 86_400.0


class Time:
    """A clock that a test sets."""

    def __init__(self):
        self.seconds = 20_000 * DAY

    def __call__(self):
        return self.seconds


@pytest.fixture
def time(monkeypatch):
    now = Time()
    monkeypatch.setattr(clock, "seconds", now)
    return now


def filled(path, values, **options):
    store = declared(Store.create(path, Settings(**values), **options), "alice")
    store.add(X[:600], Y[:600], NAMES, epsilons=[0.25 if name == "p1" else np.nan for name in NAMES])
    return store


def ask(store, analyst="alice", shift=0.0):
    return [store.predict(part + shift, analyst).tolist() for part in np.array_split(X[600:760], 4)]


def run_round(store):
    """The operator has the round run that a new period began, as a server does by itself."""
    store.renew_if_due()
    for _ in store.go_on():
        pass


@pytest.mark.parametrize("values", [PLAIN, MODEL], ids=["votes", "model"])
def test_votes_use_no_more_than_their_part_of_the_time(tmp_path, time, values):
    with filled(tmp_path / "a.store", {**values, "pace_days": 100}) as store:
        ledger = store.engine.ledger
        limit, small = ledger.limit("alice"), ledger.bounds(ledger.find(["p1"]), "alice", in_time=False)[0][0]
        for i, days in enumerate((0, 10, 10, 50, 200)):
            time.seconds += days * DAY
            ask(store, shift=0.001 * i)
            share = min((0, 10, 20, 70, 100)[i] / 100, 1.0)
            most = ledger.column("alice").max() if "alice" in ledger.scopes else 0
            assert most <= share * limit
            assert store.engine.ledger.spent(["p1"], "alice")[0] <= share * small
            if values is PLAIN:
                assert most >= 0.9 * share * limit
            assert not list(problems(store))
    with Store(tmp_path / "a.store") as store:
        assert store.engine.ledger.fraction == (1000, 1000)
        assert not list(problems(store))


def test_the_shared_model_is_not_paced_and_asks_less_at_first(tmp_path, time):
    with filled(tmp_path / "a.store", {**MODEL, "sigma2": None, "pace_days": 100}) as store:
        ask(store)
        assert store.engine.ledger.column(SHARED).max() > 0
        adviser = store.engine.predictor.adviser("alice")
        first = adviser.sigma2()
        time.seconds += 100 * DAY
        ask(store, shift=0.001)
        assert store.engine.predictor.adviser("alice").sigma2() < first


def test_a_clock_that_is_set_back_changes_nothing(tmp_path, time):
    with filled(tmp_path / "a.store", {**PLAIN, "pace_days": 100}) as store:
        time.seconds += 50 * DAY
        ask(store)
    time.seconds -= 40 * DAY
    with Store(tmp_path / "a.store") as store:
        store.predict(X[:1])
        assert store.engine.ledger.fraction == (500, 1000)


@pytest.mark.parametrize("values", [PLAIN, MODEL], ids=["votes", "model"])
def test_in_a_new_period_everybody_starts_anew(tmp_path, time, values):
    path = tmp_path / "a.store"
    with filled(path, {**values, **RENEWED}) as store:
        ask(store)
        store.forget(["p3"])
        first, model = store.spent(analyst="alice"), store.engine.predictor.model
        rounds = 0 if model is None else model.shown.rounds
        time.seconds += 100 * DAY
        assert store.renew_if_due()
        assert not store.renew_if_due()
        assert not list(problems(store))
        if model is None:
            assert store.spent().max() == 0
        else:  # a round began, and when it is run, everybody pays for it
            assert model.due() == "count"
            assert store.engine.ledger.column(SHARED).max() == 0
            run_round(store)
            assert rounds == model.rounds == 1
            assert model.since == 2
            assert store.engine.ledger.column(SHARED).max() > 0
        ask(store, shift=0.001)
        assert store.spent(analyst="alice").max() <= store.settings.budget
        both = store.engine.ledger.spent_in_all(["p5"], "alice") + store.engine.ledger.spent_in_all(["p5"], SHARED)
        assert 0 < first.max() < both[0] / 2**50 <= 2 * store.settings.budget
        told = statement(store.engine, "p1")
        assert told["one_analyst"]["epsilon_so_far"] <= told["one_analyst"]["epsilon"] == 0.25
        over = told["over_all_periods"]
        assert over["begun"] == 2
        most = epsilon(2 * budget(0.25, 1e-5), 1e-5)
        assert 0.25 < over["one_analyst"]["epsilon_so_far"] <= over["one_analyst"]["epsilon"] <= most * (1 + 1e-9)
        assert statement(store.engine, "p3")["over_all_periods"]["one_analyst"]["spent"] > 0
        assert statement(store.engine, "p3")["one_analyst"]["spent"] == 0
        assert [entry.facts["period"] for entry in entries(store.db) if entry.kind == "renew"] == [1]
        everything = store.engine.ledger.all_scopes
        columns = [store.engine.ledger.column(scope).tolist() for scope in everything]
    time.seconds += 250 * DAY  # two more periods end while nobody has it open
    with Store(path) as store:
        assert store.engine.ledger.period == 3
        assert not list(problems(store))
        back = [store.engine.ledger.column(scope) for scope in store.engine.ledger.all_scopes]
        assert sum(map(np.sum, back)) >= sum(map(sum, columns))
        run_round(store)
        assert ask(store, shift=0.002)
        assert not list(problems(store))


def test_every_printed_epsilon_says_for_how_many_periods(tmp_path, time):
    path = tmp_path / "a.store"
    with filled(path, {**MODEL, **RENEWED}) as store:
        ask(store)
        time.seconds += 200 * DAY
        run_round(store)
        assert stream(store, "alice").left == 1.0
        ask(store, shift=0.001)
        promised = guarantee(store.settings, periods=store.engine.ledger.period + 1)
        over_all = epsilon(3 * store.settings.budget, 1e-5)
        assert promised["periods"]["epsilon_over_all"] == pytest.approx(over_all)
        assert "is for each period of 100 days. Over all 3 so far it is 1.835." in promised["periods"]["words"]
        assert promised["periods"]["words"] in promised["words"]
        told = statement(store.engine, "p1")
        assert told["words"] == "To everybody here: " + promised["words"]  # p1 has a promise of their own
        assert told["promise"].endswith("in each period of 100 days")
        over = told["over_all_periods"]
        sums = added_up({"here": told, "elsewhere": {**told, "over_all_periods": None}})
        for who in ("one_analyst", "together"):
            assert sums[who]["spent"] == over[who]["spent"] + told[who]["spent"]
            assert sums[who]["epsilon_so_far"] >= over[who]["epsilon_so_far"] > told[who]["epsilon_so_far"]
        assert sums["one_analyst"]["budget"] == over["one_analyst"]["budget"] + told["one_analyst"]["budget"]
        assert sums["one_analyst"]["left"] == 2 * told["one_analyst"]["left"]
        assert "In here budgets are renewed every 100 days: this is about all 3 periods so far." in sums["words"]
        assert "elsewhere" not in sums["words"]
        assert status(store)["guarantee"]["periods"]["begun"] == 3
        assert status(store)["over_all_periods"]["one_analyst"]["spent"] > status(store)["one_analyst"]["spent"]
        assert model_promise(store.engine).budget == pytest.approx(3 * store.settings.shared_budget)
    for command in (("status", path), ("owner", path, "p1")):
        told = run(*command, code=0).stdout
        assert "Over all 3 periods so far:" in told
    assert "in each period of 100 days" in run("forecast", path, "--analyst", "alice", code=0).stdout


def test_the_operator_confirms_in_words(tmp_path):
    words = run("init", tmp_path / "a.store", "--renew", "365d", "--classes", "a,b")
    assert words.exit_code == 2
    assert "and i_understand='epsilon per period' (--i-understand) go together" in words.stderr
    confirmed = ("--i-understand", "epsilon per period")
    told = run("init", tmp_path / "a.store", "--renew-days", "365", *confirmed, "--classes", "a,b", code=0).stdout
    assert "epsilon = 1 is for each period of 365 days" in told
    with pytest.raises(InvalidInputError, match="pace_days must be at most renew_days"):
        Settings(**PLAIN, **RENEWED, pace_days=200)


def test_many_shards_are_as_one(tmp_path, time):
    told, start = [], time.seconds
    for i, make in enumerate((None, inline(1).new_shard, inline(3).new_shard)):
        time.seconds = start
        values = {**MODEL, **RENEWED, "pace_days": 50}
        with filled(tmp_path / f"{i}.store", values, noise=Replayed(), make_shard=make) as store:
            found = []
            for days in (10, 10, 100):
                time.seconds += days * DAY
                run_round(store)
                found += [ask(store, shift=0.0001 * days), store.spent().tolist()]
            assert not list(problems(store))
            told.append(found)
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("kind", ["store", "engine"])
@pytest.mark.parametrize("asked_first", [True, False])
def test_no_query_decides_who_is_in_the_round_of_a_new_period(tmp_path, time, kind, asked_first):
    settings = Settings(**MODEL, **RENEWED)
    made = Engine(settings, SecureNoise()) if kind == "engine" else Store.create(tmp_path / "a.store", settings)
    made.add(X[:60], Y[:60], NAMES[:60])
    for _ in made.train():
        pass
    if kind == "store":
        declared(made, "alice", "bob")
    time.seconds += 101 * DAY
    for asks in (asked_first, not asked_first):
        if asks:
            with pytest.warns(UserWarning, match="indknn train STORE"):
                made.predict(X[600:601], "alice")
        else:
            made.add(X[60:61], Y[60:61], ["zoe"])
    assert made.spent(["p2"], "bob")[0] == 0.0
    for _ in made.train():
        pass
    assert made.spent(["zoe"], "bob").tolist() == [0.0]
    assert made.spent(["p2"], "bob")[0] > 0.0
    if kind == "store":
        made.close()


def test_the_estimator_renews_and_keeps_the_period(time):
    model = IndKNNClassifier(tau=0.3, sigma2=0.02, classes=[0, 1, 2], **RENEWED)
    model.fit(X[:600], Y[:600], NAMES).predict(X[600:700])
    time.seconds += 101 * DAY
    model.predict(X[700:710])
    assert model.guarantee_["periods"]["begun"] == 2
    with pytest.raises(PrivacyError, match="renew_days must stay"):
        model.set_params(renew_days=None, i_understand=None).fit(X[:600], Y[:600], NAMES)


def test_a_fit_without_renewal_ends_the_renewal_of_an_earlier_one(time):
    model = IndKNNClassifier(tau=0.3, sigma2=0.02, mode="votes", max_queries=20, classes=[0, 1, 2], **RENEWED)
    model.fit(X[:600], Y[:600], NAMES)  # nothing is released, so everything may change
    model.set_params(renew_days=None, i_understand=None).fit(X[:600], Y[:600], NAMES)
    for day in range(3):
        model.predict(X[600 + 40 * day : 640 + 40 * day])
        time.seconds += 101 * DAY
    assert model.guarantee_["periods"] is None
    assert model._engine.ledger.column_in_all(None).max() <= model._engine.ledger.budget


def test_a_fit_without_pace_ends_the_pace_of_an_earlier_one(time):
    model = IndKNNClassifier(tau=0.3, mode="votes", max_queries=20, classes=[0, 1, 2], pace_days=10)
    model.fit(X[:600], Y[:600], NAMES).predict(X[600:602])
    time.seconds += DAY
    model.predict(X[602:604])
    model.set_params(pace_days=None).fit(X[:600], Y[:600], NAMES).predict(X[604:606])
    assert model._engine.ledger.fraction == (1, 1)

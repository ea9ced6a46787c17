"""An analyst may be given less than the store's ε: enforced by the ledger, durable, public and for good."""

import json
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

import indknn
from conftest import blobs
from helpers.asking import declared
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.core.accounting import budget, epsilon, to_units
from indknn.engine import new_ledger
from indknn.errors import InvalidInputError, PrivacyError, StoreError
from indknn.ledger import SHARED, MemoryLedger
from indknn.ledger.figures import ONE, TOGETHER, by_observer, guarantee, ledger_words, statement
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.keyfile import keys_path, read_key_file
from indknn.store.reports import status, stream
from indknn.store.table_counts import pay_for_counts
from indknn.store.verify import problems
from server.serving import INFER, application, question

X, Y = blobs(760, 3, 8)
NAMES = [f"p{i % 40}" for i in range(600)]
PLAIN = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.1, max_queries=200, reuse="none")
MODEL = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.02, epsilon=4.0, model_share=0.1)


def filled(path, settings=PLAIN):
    store = declared(Store.create(path, settings), "alice", "bob", "eve")
    store.add(X[:600], Y[:600], NAMES)
    return store


@pytest.fixture
def store(tmp_path):
    with filled(tmp_path / "a.store") as made:
        yield made


@pytest.mark.parametrize(
    ("settings", "less"),
    [(PLAIN, 0.25), (MODEL, 2.0), (replace(MODEL, model_share=0.9), 0.25)],
    ids=["votes", "a shared model", "less than the shared model takes"],
)
def test_nobody_spends_more_with_an_analyst_than_that_analyst_was_given(tmp_path, settings, less):
    with filled(tmp_path / "a.store", settings) as store:
        store.limit_analyst("alice", less)
        for analyst in ("alice", "bob"):
            for part in np.array_split(X[600:760], 8):
                store.predict(part, analyst)
        # What alice learned is hers and what everybody sees.
        most = budget(less, settings.delta, settings.accountant)
        assert 0.3 * most < store.spent(analyst="alice").max() <= most
        assert most < store.spent(analyst="bob").max() <= settings.budget
        assert not list(problems(store))
    with indknn.open(tmp_path / "a.store") as again:
        before = again.spent(analyst="alice").max()
        again.predict(X[:100] + 0.01, "alice")
        assert before <= again.spent(analyst="alice").max() <= most
        assert not list(problems(again))


def test_a_ledger_that_ignores_it_is_noticed(store, monkeypatch):
    monkeypatch.setattr(MemoryLedger, "budget_of", lambda self, scope: self.budget)
    store.limit_analyst("alice", 0.25)
    store.predict(X[600:760], "alice")
    assert "somebody has spent more than their budget with analyst 'alice'" in list(problems(store))


def test_the_noise_is_planned_for_what_the_analyst_has(tmp_path):
    automatic = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, max_queries=200, reuse="none")
    shares = {}
    with filled(tmp_path / "a.store", automatic) as store:
        store.limit_analyst("alice", 0.25)
        store.predict(X[600:620], "alice")
        store.predict(X[600:620], "bob")
        for name in ("alice", "bob"):
            shares[name] = store.spent(analyst=name).mean() / automatic.seen_by(name).budget
    assert shares["alice"] < 3 * shares["bob"]  # with bob's noise it would be 13 times as much


def test_it_is_lowered_before_the_first_answer_and_never_raised(store):
    store.limit_analyst("alice", 0.5)
    store.limit_analyst("alice", 0.25)
    store.limit_analyst("alice", 0.25)  # nothing new
    with pytest.raises(InvalidInputError, match=r"may be lowered, never raised: 0.25 was given, got 0.5"):
        store.limit_analyst("alice", 0.5)
    store.predict(X[600:601], "alice")
    with pytest.raises(InvalidInputError, match=r"'alice' was answered already, within epsilon = 0.25"):
        store.limit_analyst("alice", 0.1)
    store.predict(X[600:601], "bob")
    with pytest.raises(InvalidInputError, match=r"'bob' was answered already, within epsilon = 1"):
        store.limit_analyst("bob", 0.5)
    assert store.settings.analysts == {"alice": 0.25}
    store.purge()  # what was told was told
    with pytest.raises(InvalidInputError, match="answered already"):
        store.limit_analyst("bob", 0.5)
    told = [entry.facts for entry in entries(store.db) if entry.kind == "budget"]
    assert [(facts["epsilon"], facts["was"]) for facts in told] == [(0.5, None), (0.25, 0.5)]
    assert "alice" not in json.dumps(told)  # the trail has no names
    assert not list(problems(store))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, float("nan")])
def test_what_is_out_of_bounds_is_refused(store, wrong):
    generation = store.generation
    with pytest.raises(InvalidInputError, match=r"epsilon .*got"):
        store.limit_analyst("alice", wrong)
    assert store.generation == generation  # a wrong number must not have a large store read anew
    assert not store.settings.analysts
    assert not list(problems(store))


def test_votes_alone_answer_who_was_given_less_than_the_shared_model_takes(tmp_path):
    least = epsilon(MODEL.shared_budget, MODEL.delta)
    with filled(tmp_path / "a.store", MODEL) as store:
        store.limit_analyst("alice", 1.01 * least)
        store.limit_analyst("eve", 0.99 * least)
        ledger, predictor = store.engine.ledger, store.engine.predictor
        assert 0 < ledger.limit("alice") < ledger.limit(None) / 20
        assert ledger.limit("eve") == to_units(budget(0.99 * least, MODEL.delta))
        for analyst in ("alice", "eve"):
            store.predict(X[600:700], analyst)
        assert predictor.model.ready
        assert predictor.adviser("alice").model is predictor.model
        assert not predictor.adviser("eve").model.started  # nothing of what is shared reaches her
        assert predictor.adviser("eve").asked == 100
        assert "votes alone answer" in guarantee(store.settings, "eve")["words"]
        assert "votes alone answer" not in guarantee(store.settings, "alice")["words"]
        told = store.predict(X[600:700], "eve").tolist()
    with indknn.open(tmp_path / "a.store") as again:
        assert again.engine.predictor.adviser("eve").asked == 100
        assert again.predict(X[600:700], "eve").tolist() == told
        assert again.predict_proba(X[600:601], "eve").shape == (1, 3)
        assert not list(problems(again))


def test_ledgers_of_those_who_see_the_shared_model_and_those_who_do_not_are_apart():
    settings = replace(MODEL, model_share=0.9, analysts={"eve": 0.5})
    ledger = new_ledger(settings)
    slots = ledger.enrol(["ann", "bob"])
    everything = {scope: ledger.remaining(slots, scope).tolist() for scope in (SHARED, "bob", "eve")}
    ledger.charge(slots, ledger.remaining(slots, "eve"), "eve")  # more than is left beside the shared part
    assert ledger.remaining(slots, "eve").tolist() == [0, 0]
    assert [ledger.remaining(slots, scope).tolist() for scope in (SHARED, "bob")] == [
        everything[SHARED],
        everything["bob"],
    ]
    fresh = new_ledger(settings)
    fresh.enrol(["ann", "bob"])
    fresh.charge(slots, fresh.remaining(slots, SHARED), SHARED)
    assert fresh.remaining(slots, "eve").tolist() == everything["eve"]
    # One analyst: eve's own ledger, or what is shared and the ledger of another. Together: all of it.
    shared, own, eves = everything[SHARED][0], everything["bob"][0], everything["eve"][0]
    spent = {SHARED: np.array([shared, 0]), "bob": np.array([own, 0]), "eve": np.array([eves, eves])}
    assert by_observer(ledger, spent)[ONE].tolist() == [shared + own, eves]
    assert by_observer(ledger, spent)[TOGETHER].tolist() == [shared + own + eves, eves]


@pytest.mark.parametrize(("first", "then"), [(0.9, None), (None, 0.9)])
def test_no_fit_moves_an_analyst_who_was_answered_to_the_other_side_of_the_shared_model(first, then):
    """Votes alone may have spent a whole budget, and the shared model would come on top of it."""
    model = IndKNNClassifier(sigma2=0.02, tau=0.3, classes=[0, 1, 2], analysts={"eve": first, "bob": None})
    model.fit(X[:200], Y[:200], NAMES[:200]).predict(X[200:240], analyst="eve")
    with pytest.raises(PrivacyError, match="analyst 'eve' was answered with(out)? the shared model"):
        model.set_params(analysts={"eve": then, "bob": None}).fit(X[:200], Y[:200], NAMES[:200])
    model.set_params(analysts={"eve": first, "bob": 0.9}).fit(X[:200], Y[:200], NAMES[:200])  # bob has asked nothing


def test_no_fit_gives_somebody_less_after_queries_trained_the_model_for_everybody():
    model = IndKNNClassifier(sigma2=0.5, tau=0.3, classes=[0, 1, 2]).fit(X[:200], Y[:200], NAMES[:200])
    model.predict(X[200:203])
    model._engine.ledger.joint = True
    with pytest.raises(PrivacyError, match="no analyst can be given less"):
        model.set_params(analysts={"eve": 0.97}).fit(X[:200], Y[:200], NAMES[:200])


def test_a_schema_that_people_paid_for_is_shared_too(tmp_path):
    least = epsilon(MODEL.shared_budget, MODEL.delta)
    table = {"age": [30.0 + i % 9 for i in range(40)]}
    for first in ("counts", "less"):
        with Store.create(tmp_path / f"{first}.store", MODEL, draft=True) as store:
            if first == "counts":
                pay_for_counts(store, table, [f"p{i}" for i in range(40)])
                with pytest.raises(InvalidInputError, match=rf"must be above {least:.4g}, got .* every analyst sees"):
                    store.limit_analyst("eve", 0.99 * least)
                store.limit_analyst("eve", 1.01 * least)
            else:
                store.limit_analyst("eve", 0.99 * least)
                with pytest.raises(InvalidInputError, match="must see nothing that is shared"):
                    pay_for_counts(store, table, [f"p{i}" for i in range(40)])


def test_a_global_ledger_promises_one_thing_to_all(tmp_path):
    together = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, reuse="none", global_epsilon=2.0)
    with (
        filled(tmp_path / "a.store", together) as store,
        pytest.raises(InvalidInputError, match="none of them can be given less"),
    ):
        store.limit_analyst("alice", 0.25)


def test_queries_without_a_name_do_not_train_for_who_was_given_less(tmp_path):
    with filled(tmp_path / "a.store", MODEL) as store:
        store.limit_analyst("alice", 3.0)
        rng = np.random.default_rng(1)
        for _ in range(5):
            store.predict(rng.normal(size=(64, 8)))
        assert not store.engine.ledger.joint
    with filled(tmp_path / "b.store", MODEL) as store:
        for _ in range(5):
            store.predict(rng.normal(size=(64, 8)))
        assert store.engine.ledger.joint
        with pytest.raises(
            InvalidInputError, match="no analyst of this store can be given less: all of them have one ledger"
        ):
            store.limit_analyst("alice", 3.0)


def test_the_books_cover_it(store):
    store.limit_analyst("alice", 0.25)
    store.close()
    with sqlite3.connect(store.path) as db:
        text = db.execute("SELECT value FROM meta WHERE name = 'settings'").fetchone()[0]
        db.execute("UPDATE meta SET value = ? WHERE name = 'settings'", (text.replace("0.25", "0.95"),))
    db.close()
    with pytest.raises(StoreError, match="does not agree with its audit trail"):
        indknn.open(store.path)


def test_every_figure_for_that_analyst_follows(store):
    store.limit_analyst("alice", 0.25)
    settings = store.settings
    assert guarantee(settings, "alice")["epsilon"] == 0.25
    assert guarantee(settings, "alice")["budget"] == budget(0.25, settings.delta)
    assert "analyst 'alice' asks" in guarantee(settings, "alice")["words"]
    assert guarantee(settings, "bob")["epsilon"] == 1.0
    assert f"B = {budget(0.25, settings.delta):.6g}" in ledger_words(settings, "alice")
    assert status(store)["given_less"] == {"alice": 0.25}
    assert "One analyst is told less: within epsilon = 0.25." in statement(store.engine, "p1")["words"]
    records = stream(store, "alice", 600)
    assert records.left == 1.0


def test_a_forecast_made_before_does_not_keep_the_old_terms(tmp_path):
    with filled(tmp_path / "a.store", MODEL) as store:
        stream(store, "alice")
        store.limit_analyst("alice", 2.0)
        own = store.engine.predictor.adviser("alice").terms.budget
        assert to_units(own) == pytest.approx(store.engine.ledger.limit("alice"), rel=1e-9)


def test_a_draft_may_be_told_as_well(tmp_path):
    with Store.create(tmp_path / "a.store", PLAIN, draft=True) as store:
        store.limit_analyst("alice", 0.25)
    with indknn.open(tmp_path / "a.store") as store:
        assert store.draft
        store.add(X[:600], Y[:600], NAMES)
        store.predict(X[600:760], "alice")
        assert store.spent(analyst="alice").max() <= budget(0.25, PLAIN.delta)
        assert not list(problems(store))


def test_on_the_command_line(store):
    store.close()
    made = run("keys", "create", store.path, "--role", "analyst", "--name", "alice", "--epsilon", ".25")
    assert made.exit_code == 0, made.output
    refused = run("keys", "create", store.path, "--role", "analyst", "--name", "alice", "--epsilon", ".5")
    assert (refused.exit_code, "never raised" in refused.output) == (2, True)
    curator = run("keys", "create", store.path, "--role", "curator", "--name", "carl", "--epsilon", ".5")
    assert "epsilon is for keys of the roles" in curator.output
    assert [key.name for key in read_key_file(keys_path(store.path)).keys] == ["alice"]
    assert "analyst alice: 0 answers, no limit of queries, epsilon = 0.25 at" in run("status", store.path).output
    assert "told less" in run("owner", store.path, "p1").output
    listed = run("keys", "list", store.path).output
    assert "epsilon = 0.25" in listed
    assert [row["epsilon"] for row in json.loads(run("keys", "list", store.path, "--json").output)] == [0.25]
    with indknn.open(store.path):
        assert "epsilon is not listed" in run("keys", "list", store.path).output
        held = run("keys", "create", store.path, "--role", "analyst", "--name", "bob", "--epsilon", ".25")
    assert "in its console or API" in held.output


def test_over_http(store):
    with application(store, roles=["admin"]) as client:
        client.key = client.keys["admin"]
        wanted = {"role": "analyst", "name": "alice", "epsilon": 0.25}
        made = client("POST", "/v1/keys", json=wanted).json()
        assert made.items() >= wanted.items()
        assert client("POST", "/v1/keys", json={**wanted, "epsilon": 0.5}).status_code == 422
        assert client("POST", "/v1/keys", json={**wanted, "role": "auditor"}).status_code == 422
        plain = client("POST", "/v1/keys", json={"role": "analyst", "name": "bob"}).json()
        for key, promised in ((made["key"], 0.25), (plain["key"], 1.0)):
            assert client("GET", "/v1/session", key).json()["guarantee"]["epsilon"] == promised
            assert client("GET", "/v2/models/indknn", key).json()["parameters"]["epsilon"] == promised
        for part in np.array_split(X[600:760], 4):
            assert client("POST", INFER, made["key"], json=question(part)).status_code == 200
        listed = {key["name"]: key["epsilon"] for key in client("GET", "/v1/keys").json()["keys"]}
        assert listed == {"admin": None, "alice": 0.25, "bob": None}
        used = {row["name"]: row["epsilon"] for row in client("GET", "/v1/analysts").json()["analysts"]}
        assert used == {"admin": 1.0, "alice": 0.25, "bob": 1.0, "eve": 1.0}
        assert client("POST", "/v1/verify").json()["ok"]
    assert store.spent(analyst="alice").max() <= budget(0.25, PLAIN.delta)

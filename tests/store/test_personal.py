"""A promise of one's own: enforced by the ledger, durable, private, and for good."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cluster.histories import inline
from conftest import blobs
from golden.transcripts import Replayed
from helpers.asking import declared
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.core.accounting import budget, to_units
from indknn.errors import InvalidInputError, UnknownOwnerError
from indknn.ledger.figures import STEPS, epsilon_of, exact, statement
from indknn.models.forecast import forecast
from indknn.proof import check, read_keys
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.backup import backup
from indknn.store.chain import entries, published
from indknn.store.reports import status, stream
from indknn.store.table_counts import pay_for_counts
from indknn.store.verify import problems

X, Y = blobs(760, 3, 8)
NAMES = [f"p{i % 40}" for i in range(600)]
LESS = [0.25 if name in {"p1", "p2"} else np.nan for name in NAMES]
PLAIN = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.1, max_queries=200, reuse="none")
MODEL = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.02)
SMALL = budget(0.25, 1e-5)


def filled(path, settings=PLAIN, epsilons=LESS, **options):
    store = declared(Store.create(path, settings, **options), "alice")
    store.add(X[:600], Y[:600], NAMES, epsilons=epsilons)
    return store


def ask(store, analyst=None):
    return [store.predict(part, analyst).tolist() for part in np.array_split(X[600:760], 4)]


@pytest.fixture
def store(tmp_path):
    with filled(tmp_path / "a.store") as made:
        yield made


@pytest.mark.parametrize(
    "settings", [PLAIN, MODEL, replace(PLAIN, global_epsilon=2.0)], ids=["votes", "model", "global"]
)
def test_nobody_pays_more_than_they_were_promised(tmp_path, settings):
    with filled(tmp_path / "a.store", settings) as store:
        for analyst in (None, "alice"):
            ask(store, analyst)
        spent = store.spent(["p1", "p3"], analyst=None if settings.global_epsilon else "alice")
        assert 0.3 * SMALL < spent[0] <= SMALL < spent[1]
        for name, most in (("p1", 0.25), ("p3", settings.global_epsilon or 1.0)):
            told = statement(store.engine, name)
            assert told["one_analyst"]["epsilon_so_far"] <= told["one_analyst"]["epsilon"] == most
            assert told["one_analyst"]["spent"] <= told["one_analyst"]["budget"]
        assert statement(store.engine, "p1")["promise"].startswith("your promise: epsilon = 0.25,")
        assert "promise" not in statement(store.engine, "p3")
        (row,) = (row for row in exact(store.engine) if row["owner"] == "p1")
        assert row["one_analyst"]["spent"] <= row["one_analyst"]["budget"] <= SMALL
        assert row["epsilon"] == 0.25
        assert status(store)["own_promises"] == 2
        assert not list(problems(store))
        before = store.spent(["p1"])
    with Store(tmp_path / "a.store") as store:  # read back
        assert not list(problems(store))
        assert ask(store)
        assert store.spent(["p1"], analyst="alice")[0] <= SMALL
        assert store.spent(["p1"]) == before


def test_everything_that_leaves_follows_the_public_default(tmp_path):
    """The same noise, prices and forecasts, whoever was promised less: only what those people add differs."""
    told = []
    for i, epsilons in enumerate((None, LESS)):
        with filled(tmp_path / f"{i}.store", MODEL, epsilons, noise=Replayed()) as store:
            ask(store, "alice")
            scales = [store.engine.predictor.model.scale, store.engine.predictor.adviser("alice").terms]
            guarantee = status(store)["guarantee"]
            told.append((guarantee, scales, forecast(stream(store, "alice")).ends))
    assert told[0] == told[1]


def test_coming_back_has_the_smaller_promise(tmp_path):
    with filled(tmp_path / "a.store") as store:
        store.forget(["p1"])
        assert not list(problems(store))
        with pytest.raises(InvalidInputError, match="epsilon of owner 'p1' may only be lower: 0.25 was promised"):
            store.add(X[:1], Y[:1], ["p1"], epsilons=[0.5])
        store.add(X[:1], Y[:1], ["p99"])  # takes the slot, not the promise
    with Store(tmp_path / "a.store") as store:
        store.add(X[:2], Y[:2], ["p1", "p1"])
        assert statement(store.engine, "p1")["one_analyst"]["epsilon"] == 0.25
        assert statement(store.engine, "p99")["one_analyst"]["epsilon"] == 1.0
        assert not list(problems(store))


def test_when_everybody_was_forgotten_no_promise_is_left(tmp_path):
    with filled(tmp_path / "a.store") as store:
        store.forget(sorted(set(NAMES)))
    with Store(tmp_path / "a.store") as store:
        assert not store.engine.ledger.promises["whole"].any()
        store.add(X[:50], Y[:50], [f"q{i}" for i in range(50)])
        assert not store.engine.ledger.promises["whole"].any()
        assert not list(problems(store))


def test_a_receipt_states_the_promise_that_holds(store):
    """Whoever has spent more than they ask for is not given a signature under what they ask for."""
    ask(store, "alice")
    few, many = store.lower("p1", 0.125), store.lower("p3", 0.125)
    for receipt in (few, many):
        found = receipt["on_the_books"]["one_analyst"]
        assert receipt["asked"] == 0.125 < receipt["epsilon"] == found["epsilon"]
        assert float(store.spent([receipt["owner"]], "alice")[0]) <= found["budget"]
    assert store.lower("p3", 0.1)["epsilon"] == many["epsilon"]
    store.add(X[:1], Y[:1], ["new"])
    assert store.lower("new", 0.125)["epsilon"] == 0.125


def test_receipts_of_lowering_show_no_more_than_a_step(tmp_path):
    """Two people who differ by less than 1/50 of B in what they have spent get the same receipts, whatever they ask."""
    own, papers = {"at", "audit_hash", "signature", "signed_with", "store"}, []
    whole = to_units(PLAIN.budget)
    for i, units in enumerate((10 * whole // STEPS + 1, 11 * whole // STEPS)):
        with filled(tmp_path / f"{i}.store", epsilons=None) as store:
            ledger = store.engine.ledger
            ledger.charge(ledger.find(["p3"]), np.array([units]), "alice")
            asked = [epsilon_of(PLAIN.budget * k / 1000, PLAIN.delta, "gdp") for k in range(225, 195, -1)]
            receipts = [store.lower("p3", epsilon) for epsilon in asked]
            assert {receipt["receipt"] for receipt in receipts} == {"promise"}
            papers.append([{name: fact for name, fact in one.items() if name not in own} for one in receipts])
    assert papers[0] == papers[1]
    assert papers[0][0]["epsilon"] == papers[0][0]["asked"]
    assert papers[0][-1]["epsilon"] > papers[0][-1]["asked"]


def test_lowering_is_durable_signed_and_on_the_trail_without_name_or_value(store):
    ask(store, "alice")
    receipt = store.lower("p3", 0.5)
    assert receipt["on_the_books"]["one_analyst"]["epsilon"] >= 0.5
    assert check([json.dumps(receipt)], read_keys(json.dumps(published(store.db)))).problem is None
    newest = list(entries(store.db))[-1]
    assert newest.kind == "lower"
    assert {name: value for name, value in newest.facts.items() if name != "books"} == {"owners": 1}
    with pytest.raises(InvalidInputError, match="may only be lower: 0.5 was promised, got 0.75"):
        store.lower("p3", 0.75)
    with pytest.raises(InvalidInputError, match="epsilon"):
        store.lower("p3", 0.0)
    with pytest.raises(UnknownOwnerError):
        store.lower("nobody", 0.5)
    store.lower("p3", 0.5)  # equal is fine


def test_a_receipt_of_lowering_does_not_show_when_others_came_or_asked(store, monkeypatch):
    """A person who sends the same promise again sees the time of that, not the time of the newest entry."""
    store.lower("p3", 0.5)
    monkeypatch.setattr("indknn.store.chain.now", lambda: "2100-01-01T00:00:00Z")
    store.forget(["p4"])
    ask(store, "alice")
    theirs = list(entries(store.db))[-1]
    monkeypatch.setattr("indknn.store.chain.now", lambda: "2100-01-02T00:00:00Z")
    receipt, own = store.lower("p3", 0.5), list(entries(store.db))[-1]
    assert theirs.at < receipt["at"] == own.at == "2100-01-02T00:00:00Z"
    assert (own.kind, own.facts["owners"], own.hash.hex()) == ("lower", 0, receipt["audit_hash"])
    assert not list(problems(store))


def test_below_what_is_spent_it_is_what_is_spent(store):
    ask(store, "alice")
    spent = store.spent(["p5"])
    told = store.lower("p5", 0.1)["on_the_books"]["one_analyst"]
    assert told["epsilon"] == told["epsilon_so_far"] > 0.1
    assert told["budget"] >= spent[0]
    for part in np.array_split(X[:100], 4):
        store.predict(part + 0.01, "alice")
    assert store.spent(["p5"], analyst="alice") == spent
    assert not list(problems(store))


def test_rows_must_agree_and_only_lower(tmp_path):
    with Store.create(tmp_path / "a.store", PLAIN) as store:
        for epsilons, message in (
            ([0.5, 0.25], "owner 'ann' has rows with epsilon 0.5 and 0.25"),
            ([2.0, 2.0], "epsilon of row 0 must be .* it may only be lower, got 2"),
            (["much", ""], "epsilon of row 0 must be a number, got 'much'"),
            ([0.5], "epsilons must be one number per row: 2 rows, got 1"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                store.add(X[:2], Y[:2], ["ann", "ann"], epsilons=epsilons)
        with pytest.raises(InvalidInputError, match="owner 'ann' has rows with epsilon 0.5 and 0.25"):
            store.add_batches(
                [(X[:1], Y[:1], ["ann"], None, None, [0.5]), (X[1:2], Y[1:2], ["ann"], None, None, [0.25])]
            )
        assert len(store.engine.shard) == 0
        store.add(X[:2], Y[:2], ["ann", "ann"], epsilons=["0.5", ""])  # one row that says it is enough
        assert statement(store.engine, "ann")["one_analyst"]["epsilon"] == 0.5


def test_sync_lowers_also_where_rows_are_equal(tmp_path):
    with Store.create(tmp_path / "a.store", PLAIN) as store:
        rows = X[:3], Y[:3], ["ann", "bob", "eve"], ["1", "2", "3"]
        store.sync(*rows)
        assert store.sync(*rows, epsilons=[0.25, None, None]).unchanged == 3
        assert statement(store.engine, "ann")["one_analyst"]["epsilon"] == 0.25
        assert store.sync(*rows).unchanged == 3  # absent keeps what is there
        assert statement(store.engine, "ann")["one_analyst"]["epsilon"] == 0.25


def test_each_row_may_have_a_promise(tmp_path):
    with Store.create(tmp_path / "a.store", PLAIN) as store:
        store.add(X[:3], Y[:3], "each-row", epsilons=[0.5, np.nan, 0.25])
        assert [statement(store.engine, f"each-row:{i}")["one_analyst"]["epsilon"] for i in range(3)] == [
            0.5,
            1.0,
            0.25,
        ]


def test_a_schema_that_people_pay_for_costs_them_their_share(tmp_path):
    with Store.create(tmp_path / "a.store", replace(MODEL, n_features=1, classes=()), draft=True) as store:
        pay_for_counts(store, {"age": list(range(50))}, [f"p{i}" for i in range(50)], [0.1] + [None] * 49)
        first, second = store.spent(["p0", "p1"])
        assert first <= 0.05 * budget(0.1, 1e-5) < second
        assert not store.engine.ledger.used


def test_many_shards_are_as_one(tmp_path):
    told = []
    for i, make in enumerate((None, inline(1).new_shard, inline(3).new_shard)):
        with filled(tmp_path / f"{i}.store", MODEL, noise=Replayed(), make_shard=make) as store:
            first = ask(store, "alice")
            store.lower("p7", 0.125)
            more = [store.predict(part + 0.01).tolist() for part in np.array_split(X[:100], 4)]
            assert not list(problems(store))
            told.append((first, more, store.spent().tolist()))
        with Store(tmp_path / f"{i}.store", make_shard=make) as store:
            assert not list(problems(store))
            assert store.engine.ledger.promises_of(["p7"])["epsilon"].tolist() == [0.125]
            ask(store)
    assert told[0] == told[1] == told[2]


def test_a_backup_has_promises_and_an_older_one_is_refused(tmp_path):
    with filled(tmp_path / "a.store") as store:
        backup(store, tmp_path / "b.store")
        store.lower("p1", 0.125)
    with Store(tmp_path / "b.store") as copy:
        assert copy.engine.ledger.promises_of(["p1"])["epsilon"].tolist() == [0.25]
    result = run("restore", tmp_path / "b.store", tmp_path / "a.store")
    assert result.exit_code != 0  # the promise of p1 would be lost with the entries since


def test_the_estimator_keeps_promises_through_a_refit():
    model = IndKNNClassifier(tau=0.3, random_state=0, mode="votes", sigma2=0.1, max_queries=100)
    model.fit(X[:600], Y[:600], NAMES, epsilons=LESS)
    model.predict(X[600:700])
    assert model.privacy_spent(["p1"])[0] <= SMALL < model.privacy_spent(["p3"])[0]
    model.lower("p4", 0.5)
    model.set_params(delta=1e-6)
    model.fit(X[:600], Y[:600], NAMES)
    assert model.statement("p1")["one_analyst"]["epsilon"] == 0.25
    with pytest.raises(InvalidInputError, match="may only be lower"):
        model.partial_fit(X[:1], Y[:1], ["p1"], epsilons=[0.5])
    with pytest.raises(InvalidInputError, match="may only be lower"):
        model.fit(X[:1], Y[:1], ["p1"], epsilons=[0.5])
    assert len(model.record_ids_) == 600


def test_commands_take_a_column_and_lower(tmp_path):
    place, table = tmp_path / "a.store", tmp_path / "t.csv"
    lines = [f"{a},{b},{i % 2},p{i},{'0.25' if i == 1 else ''}" for i, (a, b) in enumerate(X[:20, :2].round(3))]
    table.write_text("\n".join(["a,b,y,owner,promised", *lines]))
    run("init", place, "--classes", "0,1", "--mode", "votes", code=0)
    run("add", place, table, "--owner-epsilon", "promised", code=0)
    told = run("owner", place, "p1", code=0).stdout
    assert "your promise: epsilon = 0.25, except with probability delta = 1e-05" in told
    lowered = run("owner", place, "p2", "--lower", "0.5", "--receipt", tmp_path / "r.json", code=0).stdout
    assert "your promise: epsilon = 0.5" in lowered
    assert "may only be lower" in run("owner", place, "p2", "--lower", "0.75", code=2).stderr
    np.savez(tmp_path / "t.npz", X=X[:2, :2], y=[0, 1], owners=["q1", "q2"], epsilons=[0.125, np.nan])
    run("add", place, tmp_path / "t.npz", code=0)
    assert json.loads(run("owner", place, "q1", "--json", code=0).stdout)["one_analyst"]["epsilon"] == 0.125

"""What only a database has: an address, a lease with an epoch, a server that can be lost, rows that others can edit."""

import json

import numpy as np
import psycopg
import pytest

from golden.transcripts import MODES, Replayed, fingerprint, history
from golden.transcripts import settings as golden_settings
from helpers.asking import declared
from helpers.commands import run
from indknn import open as open_store
from indknn.errors import DamagedStoreError, InvalidInputError, StoreError
from indknn.place import place_of
from indknn.store import Store, chain
from indknn.store.database import VERSION
from indknn.store.home import home_of
from indknn.store.verify import Snapshot, problems
from indknn.types import Given
from server.serving import application
from store.postgres.people import NAMES, RNG, SETTINGS, X, Y

# Addresses


def test_an_address_is_shown_as_it_was_given():
    text = "postgresql://ann@db.example:5433/people?sslmode=verify-full&schema=trial"
    assert str(place_of(text)) == text
    assert str(place_of("postgres:///people?host=/run/postgresql")) == "postgresql:///people?host=/run/postgresql"
    assert place_of(place_of(text)) == place_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:s3cret@db.example/people",
        "postgresql://ann@db.example/people?password=s3cret",
        "postgresql://db.example/people?s3cret=1",
        "postgresql://db.example/people?schema=s3cret;DROP",
        "postgresql://db.example/",
        "postgresql://db.example:x/people",
    ],
)
def test_a_bad_address_is_refused_in_one_line_without_its_password(text):
    with pytest.raises(InvalidInputError) as refused:
        place_of(text)
    assert "\n" not in str(refused.value)
    if ":s3cret@" in text or "password=" in text:
        assert "s3cret" not in str(refused.value)
        assert "PGPASSWORD" in str(refused.value)
        shown = run("status", text)
        assert shown.exit_code == 2
        assert "s3cret" not in shown.output


def test_a_password_comes_from_the_environment_and_shows_nowhere(server, place, monkeypatch):
    schema_name = place_of(place).schema
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(f"CREATE ROLE {schema_name} LOGIN PASSWORD 'right-one'")
        pg.execute(f"GRANT CREATE ON DATABASE postgres TO {schema_name}")
    there = f"postgresql://{schema_name}@127.0.0.1:{server.port}/postgres?schema={schema_name}"
    monkeypatch.setenv("PGPASSWORD", "wrong-one")
    with pytest.raises(StoreError, match="cannot be reached") as refused:
        Store.create(there, SETTINGS)
    assert "wrong-one" not in repr(refused.value)
    assert refused.value.__cause__ is None
    monkeypatch.setenv("PGPASSWORD", "right-one")
    with Store.create(there, SETTINGS) as made:
        made.add(X, Y, NAMES)
        assert list(problems(made)) == []
        assert made.forget(["p0"])["stage"] == "deleted"
        assert "pg_monitor" in made.rewrite()["why"][0]  # an ordinary role may not look at the log, and says so


# Coming into being, and versions


def test_a_store_is_never_overwritten_and_must_be_there(store, server):
    with pytest.raises(StoreError, match="exists already"):
        Store.create(store.path, SETTINGS)
    missing = server.new_place()
    with pytest.raises(StoreError, match="indknn init"):
        open_store(missing)
    assert not home_of(missing).exists()


def test_a_store_that_is_not_finished_is_not_there(place, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(chain, "append", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Store.create(place, SETTINGS)
    assert not home_of(place).exists()
    Store.create(place, SETTINGS).close()


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_store_of_another_version_is_refused(store, outsider, version):
    store.close()
    outsider.execute("UPDATE schema_version SET version = %s", (version,))
    for read_only in (False, True):
        with pytest.raises(StoreError, match=f"has version {version} .* supports version {VERSION}$"):
            Store(store.path, read_only=read_only)


# The same promises


@pytest.mark.parametrize("mode", ["algorithm 3, a global budget", "reuse of labels", "the shared model and votes"])
def test_a_database_answers_as_a_file_does_to_the_bit(place, tmp_path, mode):
    told = []
    for where in (tmp_path / "a.store", place):
        with Store.create(where, golden_settings(MODES[mode]), noise=Replayed()) as store:
            one = history(store, store.forget, MODES[mode])
            rows = [tuple(map(str, row)) for row in store.db.execute("SELECT * FROM answers ORDER BY seq")]
            told.append({**one, "answers": fingerprint(rows), "spent": fingerprint(store.spent())})
            assert list(problems(store)) == []
    assert told[0] == told[1]


def test_texts_with_odd_characters_survive(store):
    odd = ["back\\slash", "\\0", "ünïcode", "%s ? %"]
    declared(store, *odd)
    told = {name: store.predict(X[:2] + i, name, request_id=name).tolist() for i, name in enumerate(odd)}
    store.close()
    with Store(store.path) as again:
        for i, name in enumerate(odd):
            assert again.predict(X[:2] + i, name, request_id=name).tolist() == told[name]
        assert again.db.execute("SELECT count(*) FROM answers").get == 2 * len(odd)
        assert list(problems(again)) == []


def test_many_rows_go_by_copy_and_come_back(place):
    n = 9000
    rows, labels = RNG.normal(size=(n, 4)), RNG.choice(["a", "b"], size=n)
    with Store.create(place, SETTINGS) as store:
        store.add(rows, labels, "each-row")
        store.replace_all(Given(*store.settings.prepare(rows[::-1].copy(), labels), [f"q{i}" for i in range(n)]))
        before = store.engine.shard.record_ids().tolist()
    with Store(place) as again:
        assert again.engine.shard.record_ids().tolist() == before
        assert list(problems(again)) == []


def test_looking_needs_no_lease_and_sees_one_moment(store):
    with Store(store.path, read_only=True) as looking:
        store.predict(X[:3])
        assert looking.db.execute("SELECT count(*) FROM answers").get == 0
        assert list(problems(looking)) == []
        with pytest.raises(AssertionError):
            looking.db.execute("DELETE FROM answers")
    shown = run("status", str(store.path), "--json")
    assert json.loads(shown.output)["answers"] == 3


def test_a_check_goes_on_beside_answers(store):
    store.predict(X[:3])
    check = Snapshot(store)
    assert check.copy_some()
    store.predict(X[3:6])
    assert check.problems()[0] == []


def test_commands_take_an_address(server, place, tmp_path):
    np.savez(tmp_path / "r.npz", X=X, y=Y, owners=NAMES)
    np.savez(tmp_path / "q.npz", X=X[:3])
    steps = [
        ["init", place, "--mode", "votes", "--tau", "0.2"],
        ["add", place, str(tmp_path / "r.npz")],
        ["predict", place, str(tmp_path / "q.npz"), "-o", str(tmp_path / "a.csv")],
        ["keys", "create", place, "--role", "analyst", "--name", "ann", "--epsilon", "0.5"],
        ["keys", "list", place],
        ["forget", place, "p1", "--receipt", str(tmp_path / "first.json")],
        ["rewrite", place, "--receipt", str(tmp_path / "second.json")],
        ["verify", place, "--erased"],
        ["takeover", place],
        ["doctor", place],
        ["export", "audit", place, "-o", str(tmp_path / "audit.jsonl")],
    ]
    for step in steps:
        done = run(*step)
        assert done.exit_code == 0, (step, done.output)
    assert json.loads((tmp_path / "second.json").read_text())["stage"].startswith("rewritten")
    *entries, head = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    kinds = [entry["kind"] for entry in entries]
    assert kinds[-1] == "rewrite"
    assert "keys" in kinds
    (tmp_path / "people.pub").write_text(run("keys", "public", place, "--json", code=0).output)
    for signed in ("first.json", "second.json", "audit.jsonl"):
        run("check", tmp_path / signed, "--key", tmp_path / "people.pub", code=0)
    assert head["entries"] == len(entries)


# Rule 16: edits by others


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE meta SET value = to_json(9) WHERE name = 'next_number'",
        "UPDATE requests SET digest = decode(repeat('00', length(digest)), 'hex')",
        "DELETE FROM requests",
        "UPDATE scopes SET name = '=carl' WHERE name = '=ann'",
        "UPDATE tombstones SET queries = queries + 1",
        "UPDATE participation SET queries = decode(repeat('00', length(queries)), 'hex')",
        "UPDATE balances SET spent = decode(repeat('00', length(spent)), 'hex')",
        "UPDATE records SET body = (SELECT body FROM records WHERE slot = 7) WHERE slot = 8",
        "UPDATE answers SET label = 1 - label",
        "DELETE FROM debits WHERE seq = (SELECT max(seq) FROM debits)",
        "UPDATE audit SET at = '2000-01-01T00:00:00Z' WHERE position = 2",
        "UPDATE record_keys SET digests = decode(repeat('00', length(digests)), 'hex')",
        "DELETE FROM owners WHERE number = 4",
        "INSERT INTO additions VALUES ('a', 'b', 'c', 1)",
    ],
)
def test_edits_by_others_are_found(store, outsider, edit):
    store.predict(X[:2], "ann", request_id="one")
    store.fold()
    store.forget(["p2"])
    store.predict(X[2:4], "ann", request_id="two")
    assert list(problems(store)) == []
    assert outsider.execute(edit).rowcount
    assert list(problems(store))  # while it is open
    store.home.close(store.db)
    store._closed = True
    with pytest.raises(DamagedStoreError):
        Store(store.path)


def test_writes_that_the_books_would_not_see_are_refused(store):
    with pytest.raises(AssertionError, match="books"):
        store.db.execute("TRUNCATE records")
    with pytest.raises(AssertionError, match="transaction"):
        store.db.delete("requests", [("one",)])


def test_every_report_of_the_service_is_made_of_a_database_too(store):
    store.predict(X[:3] + 0.1, "alice")
    with application(store) as client:
        assert client("GET", "/v1/status").json()["answers_over_time"][-1]["answers"] == 3
        for path in ("/v1/audit", "/v1/analysts", "/v1/owners?search=p", "/metrics", f"/v1/owners/{NAMES[0]}"):
            assert client("GET", path).status_code == 200, path
        assert client("POST", "/v1/verify").json()["ok"]

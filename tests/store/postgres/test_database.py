"""What only a database has: an address, a lease with an epoch, a server that can be lost, rows that others can edit."""

import json
import threading

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner

from golden.transcripts import MODES, Replayed, fingerprint, history
from golden.transcripts import settings as golden_settings
from indknn import open as open_store
from indknn.cli.app import app
from indknn.errors import DamagedStoreError, FencedError, InvalidInputError, StoreError, StoreLockedError
from indknn.place import place_of
from indknn.settings import Settings
from indknn.store import Store, chain, database
from indknn.store.home import home_of
from indknn.store.postgres import home as homes
from indknn.store.postgres import schema
from indknn.store.postgres.session import Session
from indknn.store.schema import MIGRATIONS, VERSION
from indknn.store.verify import Snapshot, problems

SETTINGS = Settings(n_features=4, classes=("a", "b"), tau=0.2, max_queries=1000, reuse="none", prior="none")
RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4))
Y = RNG.choice(["a", "b"], size=60)
NAMES = [f"p{i // 2}" for i in range(60)]


@pytest.fixture
def store(place):
    with Store.create(place, SETTINGS) as made:
        made.add(X, Y, NAMES, [f"r{i}" for i in range(60)])
        yield made


@pytest.fixture
def outsider(server, store):
    """Somebody else's connection to the tables of the store."""
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(f"SET search_path = {place_of(str(store.path)).schema}")
        yield pg


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
        shown = CliRunner().invoke(app, ["status", text])
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


def test_both_kinds_of_store_have_the_same_version():
    assert schema.FIRST + len(schema.STEPS) - 1 == VERSION == len(MIGRATIONS)


def test_an_older_store_is_migrated_and_a_later_one_refused(place, monkeypatch):
    Store.create(place, SETTINGS).close()
    for module in (schema, homes):
        monkeypatch.setattr(module, "VERSION", VERSION + 1)
    monkeypatch.setattr(schema, "STEPS", [*schema.STEPS, "CREATE TABLE later (id int8 PRIMARY KEY)"])
    with Store(place) as store:
        assert store.db.execute("SELECT count(*) FROM later").get == 0
    monkeypatch.undo()
    with pytest.raises(StoreError, match=f"version {VERSION + 1}"):
        Store(place)


# The same promises


@pytest.mark.parametrize("mode", ["algorithm 3, a global budget", "reuse of labels", "the shared model and votes"])
def test_a_database_answers_as_a_file_does_to_the_bit(place, tmp_path, mode):
    told = []
    for where in (tmp_path / "a.store", place):
        with Store.create(where, golden_settings(MODES[mode]), noise=Replayed()) as store:
            one = history(store, store.forget)
            rows = [tuple(map(str, row)) for row in store.db.execute("SELECT * FROM answers ORDER BY seq")]
            told.append({**one, "answers": fingerprint(rows), "spent": fingerprint(store.spent())})
            assert list(problems(store)) == []
    assert told[0] == told[1]


def test_texts_with_odd_characters_survive(store):
    odd = ["a\0b", "back\\slash", "\\0", "ünïcode", "%s ? %"]
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
        store.replace_all(*store.settings.prepare(rows[::-1].copy(), labels), [f"q{i}" for i in range(n)])
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
    shown = CliRunner().invoke(app, ["status", str(store.path), "--json"])
    assert json.loads(shown.output)["answers"] == 3


def test_a_check_goes_on_beside_answers(store):
    store.predict(X[:3])
    check = Snapshot(store)
    assert check.copy_some()
    store.predict(X[3:6])
    assert check.problems()[0] == []


def test_commands_take_an_address(server, place, tmp_path):
    run = CliRunner()
    np.savez(tmp_path / "r.npz", X=X, y=Y, owners=NAMES)
    np.savez(tmp_path / "q.npz", X=X[:3])
    steps = [
        ["init", place, "--prior", "none", "--tau", "0.2"],
        ["add", place, str(tmp_path / "r.npz")],
        ["predict", place, str(tmp_path / "q.npz"), "-o", str(tmp_path / "a.csv")],
        ["keys", "create", place, "--role", "analyst", "--name", "ann", "--epsilon", "0.5"],
        ["keys", "list", place],
        ["forget", place, "p1"],
        ["rewrite", place, "--receipt", str(tmp_path / "second.json")],
        ["verify", place, "--erased"],
        ["takeover", place],
        ["doctor", place],
        ["export", place, "-o", str(tmp_path / "audit.jsonl")],
    ]
    for step in steps:
        done = run.invoke(app, step)
        assert done.exit_code == 0, (step, done.output)
    assert json.loads((tmp_path / "second.json").read_text())["stage"].startswith("rewritten")
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert kinds[-1] == "rewrite"
    assert "keys" in kinds


# Rule 16: edits by others


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE meta SET value = to_json(9) WHERE name = 'next_number'",
        "UPDATE requests SET digest = zeroblob(length(digest))",
        "DELETE FROM requests",
        "UPDATE scopes SET name = '=carl' WHERE name = '=ann'",
        "UPDATE tombstones SET queries = queries + 1",
        "UPDATE participation SET queries = zeroblob(length(queries))",
        "UPDATE balances SET spent = zeroblob(length(spent))",
        "UPDATE records SET body = (SELECT body FROM records WHERE slot = 7) WHERE slot = 8",
        "UPDATE answers SET label = 1 - label",
        "DELETE FROM debits WHERE seq = (SELECT max(seq) FROM debits)",
        "UPDATE audit SET at = '2000-01-01T00:00:00Z' WHERE position = 2",
        "UPDATE record_keys SET digests = zeroblob(length(digests))",
        "DELETE FROM owners WHERE number = 4",
        "INSERT INTO joined VALUES (zeroblob(32), '{}')",
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
        store.db.execute("DELETE FROM requests WHERE day < ?", (3,))


# One writer


def test_a_second_writer_is_refused_while_the_first_lives(store):
    with pytest.raises(StoreLockedError, match="in use by process"):
        Store(store.path)
    store.close()
    Store(store.path).close()


def test_whoever_was_shut_out_writes_nothing_any_more(store, outsider):
    assert "process" in home_of(store.path).take_over()
    with Store(store.path) as successor:
        for _ in range(2):
            with pytest.raises(StoreError, match="taken over|taken this store over|PostgreSQL says|not answered"):
                store.predict(X[:1])
        with pytest.raises(FencedError):
            store.add(X[:1], Y[:1], ["p0"])
        successor.predict(X[:2])
        assert list(problems(successor)) == []
        assert successor.db.execute("SELECT count(*) FROM answers").get == 2


def late_commit(store, server, lock, monkeypatch):
    """An answer that looked at its lease before a takeover and commits after it; what its successor read of answers."""
    monkeypatch.setattr(Session, "lease_lock", lock)
    checked, go_on, failed = threading.Event(), threading.Event(), []
    append = chain.append

    def slowly(*args, **facts):
        entry = append(*args, **facts)
        if facts.get("first"):
            checked.set()
            go_on.wait(60)
        return entry

    def answer():
        try:
            store.predict(X[:1], request_id="late")
        except StoreError as error:
            failed.append(error)

    monkeypatch.setattr("indknn.store.journal.chain.append", slowly)
    late = threading.Thread(target=answer)
    late.start()
    assert checked.wait(60)
    if lock:  # whoever takes over waits for the transaction: let it end once they do
        threading.Thread(target=_when_somebody_waits, args=(server, go_on)).start()
    successor = home_of(store.path)
    session = successor.opened()
    epoch = session.execute("SELECT epoch FROM leases").get
    session.pg.execute("UPDATE leases SET epoch = epoch + 1 WHERE id = 0 AND epoch = %s", (epoch,))
    seen = session.execute("SELECT count(*) FROM answers").get
    go_on.set()
    late.join()
    committed = session.execute("SELECT count(*) FROM answers").get
    successor.close(session)
    return seen, committed, failed


def _when_somebody_waits(server, event):
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        while not pg.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
            pass
    event.set()


def test_a_successor_has_read_everything_that_was_ever_committed(store, server, monkeypatch):
    seen, committed, _ = late_commit(store, server, "FOR SHARE", monkeypatch)
    assert seen == committed == 1
    with pytest.raises(StoreError):  # and from here on the old one is shut out
        store.predict(X[1:2])


def test_the_control_with_a_plain_look_loses_an_answer(store, server, monkeypatch):
    """Without FOR SHARE the old process commits what its successor has never read: budget would be given back."""
    seen, committed, failed = late_commit(store, server, "", monkeypatch)
    assert (seen, committed, failed) == (0, 1, [])


def test_a_transaction_that_stands_still_is_ended_by_the_server(server, place, monkeypatch):
    monkeypatch.setattr(homes, "IDLE_SECONDS", 1)
    with Store.create(place, SETTINGS) as store:
        store.add(X, Y, NAMES)
        answered = store.predict(X[:1], request_id="a").tolist()
        with pytest.raises(StoreError):
            _purge_late(store, server)
        assert store.predict(X[:1], request_id="a").tolist() == answered


def _purge_late(store, server):
    with store.changing() as change:
        with psycopg.connect(server.conninfo(), autocommit=True) as pg:  # until the server has ended the session
            ended = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
            while not pg.execute(ended, (store.db.pg.info.backend_pid,)).fetchone()[0]:
                threading.Event().wait(0.05)
        change.purge()


# A server that is lost


def test_after_an_unknown_outcome_the_request_is_looked_up(store, outsider, monkeypatch):
    """The connection is lost after the server has committed, before the client hears of it."""
    leave, before = Session.__exit__, store.db.leases[0]

    def lost(self, kind, error, trace):
        if kind is None:
            self.pg.execute("COMMIT")
            outsider.execute("SELECT pg_terminate_backend(%s)", (self.pg.info.backend_pid,))
        leave(self, kind, error, trace)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "__exit__", lost)
        with pytest.raises(StoreError, match="not known"):
            store.predict(X[:2], request_id="one")
    epoch = store.db.leases[0]
    assert epoch == before + 1
    spent = store.spent().sum()
    answers = store.db.execute("SELECT count(*) FROM answers").get
    assert answers == 2
    store.predict(X[:2], request_id="one")
    assert store.spent().sum() == spent > 0
    assert store.db.execute("SELECT count(*) FROM answers").get == answers
    assert store.db.leases[0] == epoch


def test_a_lost_connection_changes_nothing_and_is_made_anew(store, outsider):
    told = store.predict(X[:2], request_id="one").tolist()
    outsider.execute("SELECT pg_terminate_backend(%s)", (store.db.pg.info.backend_pid,))
    with pytest.raises(StoreError) as failed:
        store.predict(X[2:4], request_id="two")
    assert "p0" not in str(failed.value)
    assert "host=" not in str(failed.value).replace(str(store.path), "")
    assert store.predict(X[:2], request_id="one").tolist() == told
    store.predict(X[2:4], request_id="two")
    assert list(problems(store)) == []


def test_an_aborted_transaction_is_not_taken_for_a_commit(store):
    def spoilt():
        with store.db:
            database.set_meta(store.db, "x", 1)
            with pytest.raises(StoreError):
                store.db.execute("SELECT 1 / 0")

    with pytest.raises(StoreError, match="nothing was changed"):
        spoilt()
    assert database.get_meta(store.db, "x") is None


def test_a_server_that_forgets_is_refused(store, server, monkeypatch):
    store.close()
    monkeypatch.setattr(homes, "_WEAK", {"fsync": "on"})
    with pytest.raises(StoreError, match="fsync"):
        Store(store.path)

"""One writer with a lease, takeovers, and a server that is lost."""

import threading

import psycopg
import pytest

from indknn.errors import FencedError, StoreError, StoreLockedError
from indknn.place import place_of
from indknn.store import Store, chain, database
from indknn.store.home import home_of
from indknn.store.postgres import home as homes
from indknn.store.postgres import session as leases
from indknn.store.postgres.session import Session
from indknn.store.verify import problems
from store.postgres.people import NAMES, SETTINGS, X, Y

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


def test_locks_of_strangers_keep_nobody_out(server, place):
    """Anybody who may log in can take advisory locks, on whatever numbers they like."""
    Store.create(place, SETTINGS).close()
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN")
    with psycopg.connect(server.conninfo().replace("user=postgres", "user=stranger"), autocommit=True) as pg:
        schema = place_of(place).schema
        find = "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 'leases'"
        (table,) = pg.execute(f"{find} AND nspname = %s", (schema,)).fetchone()
        pg.execute("SELECT pg_advisory_lock(%s::oid::int8::int4, n) FROM generate_series(0, 20) n", (table,))
        for statement in (
            f"SELECT * FROM {schema}.leases",
            f"SELECT * FROM {schema}.leases FOR UPDATE",
            f"BEGIN; LOCK TABLE {schema}.leases",
            f"UPDATE {schema}.leases SET epoch = 0",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                pg.execute(statement)
            pg.rollback()
        with Store(place) as store:
            store.add(X, Y, NAMES)
            store.predict(X[:1])
        assert "process" in home_of(place).take_over()
        Store(place).close()


def test_a_takeover_that_somebody_else_overtakes_says_so(store, monkeypatch):
    end, quicker = leases._end_session, []

    def slowly(pg, found):
        end(pg, found)
        monkeypatch.setattr(leases, "_end_session", end)
        quicker.append(Store(store.path))

    monkeypatch.setattr(leases, "_end_session", slowly)
    with pytest.raises(StoreLockedError, match="was not taken over: process"):
        home_of(store.path).take_over()
    with quicker[0] as winner:
        winner.predict(X[:1])


def test_a_takeover_of_a_session_that_cannot_be_ended_shuts_it_out(store, monkeypatch):
    monkeypatch.setattr(leases, "_end_session", lambda *_: None)  # as with another role
    assert store.home.still_held(store.db)
    home_of(store.path).take_over()
    assert not store.home.still_held(store.db)
    with Store(store.path) as successor:
        for _ in range(2):
            with pytest.raises(StoreError, match="taken"):
                store.predict(X[:1])
        assert store.fenced
        successor.predict(X[:1])
        assert list(problems(successor)) == []


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
    session = successor._connected()
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


def test_a_transaction_that_stands_still_is_ended_by_the_server(server, store):
    idle = "idle_in_transaction_session_timeout"
    answered = store.predict(X[:1], request_id="a").tolist()
    milliseconds = store.db.pg.execute("SELECT setting::int FROM pg_settings WHERE name = %s", (idle,)).fetchone()
    assert milliseconds == (1000 * homes.IDLE_SECONDS,)
    store.db.pg.execute(f"SET {idle} = '1s'")  # from here on, because nobody else must be quick
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
    leave, before = Session.__exit__, store.db.lease.epoch

    def lost(self, kind, error, trace):
        if kind is None:
            self.pg.execute("COMMIT")
            outsider.execute("SELECT pg_terminate_backend(%s)", (self.pg.info.backend_pid,))
        leave(self, kind, error, trace)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "__exit__", lost)
        with pytest.raises(StoreError, match="not known"):
            store.predict(X[:2], request_id="one")
    epoch = store.db.lease.epoch
    assert epoch == before + 1
    spent = store.spent().sum()
    answers = store.db.execute("SELECT count(*) FROM answers").get
    assert answers == 2
    store.predict(X[:2], request_id="one")
    assert store.spent().sum() == spent > 0
    assert store.db.execute("SELECT count(*) FROM answers").get == answers
    assert store.db.lease.epoch == epoch


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

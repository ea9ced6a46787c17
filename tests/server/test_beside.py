"""What takes long is done beside the answers: checking the store, and folding debits."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from helpers.asking import declared
from indknn.answering.requests import Request
from indknn.errors import StoreError
from indknn.server import serve, service
from indknn.server.telemetry import Log
from indknn.server.worker import Training
from indknn.settings import ServerOptions
from indknn.store import Store, chain, database, filehome, journal
from indknn.store.reports import Figures, status
from indknn.store.verify import Snapshot, problems
from server.serving import INFER, application, make_store, question, rows


def copied(store, meanwhile=lambda: None):
    snapshot, pieces = Snapshot(store), 1
    while not snapshot.copy_some():
        meanwhile()
        pieces += 1
    return snapshot, pieces


@pytest.fixture
def in_pieces(monkeypatch):
    monkeypatch.setattr(filehome, "_PAGES", 2)


def test_a_store_is_copied_in_pieces_and_checked_while_it_goes_on(store, in_pieces):
    store.add_analyst("alice")
    questions = iter(rows(3, 10_000))

    def go_on():
        store.predict([next(questions)], "alice")
        store.add([[1.0, 2.0, 3.0, 4.0]], ["a"], [f"new-{next(questions)[0]}"])

    snapshot, pieces = copied(store, go_on)
    entries = chain.last(store.db).position
    store.predict(rows(4, 5))  # later than the copy
    store.forget(["p3"])
    assert pieces > 5
    assert snapshot.problems() == ([], entries)
    assert not list(problems(store))


def test_a_copy_begins_while_another_thread_writes(store):
    with ThreadPoolExecutor(1) as other, store.changing():
        begun = other.submit(Snapshot, store)
        time.sleep(0.05)
        assert not begun.done()  # it waits: the open file is of one thread at a time
    assert begun.result().copy_some()


def test_what_is_wrong_is_found_in_the_copy(store, in_pieces):
    declared(store, "alice").predict(rows(1, 3), "alice")
    store.engine.ledger.column("alice")[0] += 1
    found, _ = copied(store)[0].problems()
    assert "memory and disk disagree about what was spent with analyst 'alice'" in found
    assert any("units in all" in one for one in found)


def test_damage_of_the_file_is_found_in_the_copy(store, in_pieces):
    with store.reading() as db:
        db.execute("DROP TRIGGER temp.records_UPDATE")
        db.execute("UPDATE records SET body = zeroblob(length(body)) WHERE slot = 5")
    found, _ = copied(store)[0].problems()
    assert "rows of the file are not as the audit trail has them" in found


def test_a_store_that_is_read_anew_meanwhile_is_not_judged(store, in_pieces):
    snapshot = Snapshot(store)
    snapshot.copy_some()
    with pytest.raises(RuntimeError), store.computing():
        raise RuntimeError
    with pytest.raises(StoreError, match="read again during the check"):
        snapshot.copy_some()
    assert copied(store)[0].problems()[0] == []


def test_queries_are_answered_while_a_check_goes_on(store, in_pieces):
    async def run(app):
        transport, answered = httpx.ASGITransport(app), 0
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            check = asyncio.create_task(client.post("/v1/verify"))
            while not check.done():
                assert (await client.post(INFER, json=question(rows(answered)))).status_code == 200
                answered += not check.done()
            return (await check).json(), answered

    with application(store) as client:
        told, answered = asyncio.run(run(client.app))
    assert (told["ok"], told["problems"]) == (True, [])
    assert answered > 1


def test_a_report_is_of_one_moment_and_waits_for_nobody(store):
    declared(store, "alice").predict(rows(1, 5), "alice")
    moment, before = Figures(store), status(store)
    store.predict(rows(2, 5), "alice")
    store.forget(["p3"])
    with ThreadPoolExecutor(1) as other, store.computing(), store.engine.shard.lock:
        assert other.submit(moment.status).result() == before
    assert status(store) != before


def test_a_long_trail_is_read_in_pieces(store, monkeypatch):
    monkeypatch.setattr(service, "_ENTRIES", 3)
    with application(store) as client:
        for i in range(20):
            assert client.ask(rows(i)).status_code == 200
        asked = []
        read_some = client.app.service.reports.read_some
        monkeypatch.setattr(client.app.service.reports, "read_some", lambda: asked.append(1) or read_some())
        told = client("GET", "/v1/status").json()
        assert sum(step["answers"] for step in told["answers_over_time"]) == told["answers"] == 20
        assert len(asked) > 6


def test_debits_are_folded_by_whoever_commits(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FOLD_BYTES", 4000)
    monkeypatch.setattr(journal, "_FOLD_LEAST", 4000)
    monkeypatch.setattr("indknn.store.store.Store.fold_if_long", lambda self: None)  # the way of an idle server
    with make_store(tmp_path / "a.store") as store, application(store) as client:
        for i in range(60):
            assert client.ask(rows(i)).status_code == 200
        client("GET", "/v1/status")
        assert int(database.get_meta(store.db, "folded")) > 20
        assert store.db.execute("SELECT sum(length(body)) FROM debits").get < 12_000
        assert not [entry for entry in chain.entries(store.db) if entry.kind == "fold"]
        assert not list(problems(store))
        before = store.spent()
    with Store(store.path) as again:
        assert np.array_equal(again.spent(), before)
        assert not list(problems(again))


def test_linear_algebra_of_a_server_takes_one_thread(store, monkeypatch):
    seen = []
    monkeypatch.setattr(serve, "_run", lambda *_: seen.extend(threadpool_info()))
    store.close()
    serve.serve([store.path], options=[ServerOptions()])
    assert {library["num_threads"] for library in seen if library["user_api"] == "blas"} == {1}


def test_a_person_is_told_of_no_charge_that_a_crash_could_undo(store):
    with application(store) as client:
        store.compute([Request(store.settings.quantise(rows(1), "the queries"), "alice")])  # not committed yet
        assert client("GET", "/v1/owners/p3").status_code == 200
        with store.reading() as db:
            assert db.execute("SELECT count(*) FROM answers").get == 1


def test_training_that_fails_is_logged_without_what_it_was_about(store, monkeypatch, caplog):

    def broken(*_):
        raise RuntimeError(f"features of p{len(_)}")

    training = Training(store, every=0.0, log=Log())
    monkeypatch.setattr(type(store), "renew_if_due", broken)
    assert not training.piece()
    assert "RuntimeError" in caplog.text
    assert "of p1" not in caplog.text

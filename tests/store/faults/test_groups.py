"""Callers that share a commit: each request is written whole or not at all, and nobody gets in another's way."""

import threading

import pytest

from indknn.answering.requests import Request
from indknn.store import Store
from indknn.store.journal import StoreJournal
from indknn.store.reports import status
from indknn.store.verify import problems
from store.faults import law


@pytest.fixture
def store(tmp_path):
    law.no_ballast()
    law.new_store(tmp_path / "a.store", free_repeats=False)
    with Store(tmp_path / "a.store") as store:
        yield store


def test_a_request_is_written_whole_or_not_at_all(store, tmp_path, monkeypatch):
    note, seen = StoreJournal.note, []

    def note_while_another_commits(self, *args):
        note(self, *args)
        self.commit()  # what another caller may do at any time
        law.copy_all(store.path, tmp_path / "b.store")
        with Store(tmp_path / "b.store") as crashed:
            seen.append(crashed.db.execute("SELECT count(*) FROM answers").get)

    store.predict(law.rows("before", 1))
    with monkeypatch.context() as patch:
        patch.setattr(StoreJournal, "note", note_while_another_commits)
        store.predict(law.rows("batch", 3), request_id="batch")
    assert seen == [1, 1, 1]
    assert store.db.execute("SELECT count(*) FROM answers").get == 4


def test_many_callers_with_requests_and_a_curator_who_looks(store):
    errors, done = [], threading.Event()

    def caller(i):
        try:
            for k in range(25):
                store.predict(law.rows(f"{i}-{k}", 2), request_id=f"{i}-{k}")
        except Exception as error:
            errors.append(error)

    def curator():
        try:
            while not done.is_set():
                status(store)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    looking = threading.Thread(target=curator)
    for thread in (*threads, looking):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    looking.join()
    assert not errors
    assert store.db.execute("SELECT count(*) FROM answers").get == 200
    assert not list(problems(store))


def test_an_interrupt_in_the_middle_of_a_query_charges_nobody_and_mixes_up_nobody(store, monkeypatch):
    names = store.engine.ledger.owners()
    draws = []

    def interrupted(*args):
        draws.append(args)
        if len(draws) == 2:
            raise KeyboardInterrupt
        return draw(*args)

    draw = store.noise.draw
    with monkeypatch.context() as patch:
        patch.setattr(type(store.noise), "draw", lambda self, *args: interrupted(*args))
        with pytest.raises(KeyboardInterrupt):
            store.predict(law.rows("q", 1), "alice")
    store.predict(law.rows("r", 1))
    assert not list(problems(store))
    assert store.spent(names, "alice").sum() == 0
    before = store.spent(names)
    store.close()
    with Store(store.path) as again:
        assert (again.spent(names) == before).all()


def test_an_interrupt_while_writing_is_an_interrupt(store, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreJournal, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.predict(law.rows("q", 1), request_id="q")
    first = store.predict(law.rows("q", 1), request_id="q")
    assert store.predict(law.rows("q", 1), request_id="q").tolist() == first.tolist()
    assert store.db.execute("SELECT count(*) FROM answers").get == 1


def test_a_big_batch_is_written_as_balances(store, tmp_path):
    """Where the debits of a batch would be longer than everybody's balance; with others' debits before and after."""
    names = store.engine.ledger.owners()
    with law.early_folds():
        for step, size in enumerate((1, 1, 40, 1, 60, 1)):
            store.predict(law.rows(f"b{step}", size), law.ANALYSTS[step % 2], request_id=f"b{step}")
            spent = [store.engine.ledger.spent(names, analyst).tolist() for analyst in law.ANALYSTS]
            law.copy_all(store.path, tmp_path / "b.store")
            with Store(tmp_path / "b.store") as crashed:
                assert not list(problems(crashed))
                assert spent == [crashed.engine.ledger.spent(names, analyst).tolist() for analyst in law.ANALYSTS]
    assert store.db.execute("SELECT count(*) FROM answers").get == 104
    # of 104 answers at most the last has a debit of its own; folding early, not even that
    assert store.db.execute("SELECT count(*) FROM debits").get <= 1
    assert not list(problems(store))


def test_two_big_batches_that_share_a_commit_are_both_written(tmp_path, monkeypatch):
    """Balances of the first must not be lost when the second, of other people, is sealed before they are written."""
    law.no_ballast()
    monkeypatch.setattr("indknn.store.journal._MANY", 0)
    monkeypatch.setattr("indknn.store.journal._BALANCE", 0)
    path = tmp_path / "a.store"
    law.new_store(path, free_repeats=False)
    with Store(path) as store:
        for analyst in ("alice", "bob"):  # blocks are told apart by analyst
            batch = store.compute([Request(store.settings.quantise(law.rows(analyst, 8), "q"), analyst)])
        assert batch.journal._pending.fold is not None
        batch.commit()
        spent = {a: store.spent(analyst=a).tolist() for a in ("alice", "bob")}
        assert all(sum(s) > 0 for s in spent.values())
        assert not list(problems(store))
        law.copy_all(path, tmp_path / "b.store")
    with Store(tmp_path / "b.store") as crashed:
        assert {a: crashed.spent(analyst=a).tolist() for a in ("alice", "bob")} == spent

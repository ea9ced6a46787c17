"""An old copy put back is noticed by the witness; a second process is told who has the store."""

import json
import os
import shutil
import signal

import pytest

from indknn.errors import StaleStoreError, StoreError, StoreLockedError
from indknn.store import Store
from indknn.store.filehome import empty_log, head_path
from indknn.store.verify import problems
from store.faults import law
from store.faults.killing import context


@pytest.fixture
def path(tmp_path):
    law.no_ballast()
    law.new_store(tmp_path / "a.store")
    return tmp_path / "a.store"


@pytest.fixture
def witness(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "witness.json"


def restore(backup, path):
    """Put a copy in place, as the documentation says: without what belongs to the file that was there."""
    shutil.copy(backup, path)
    head_path(path).unlink()


@pytest.mark.parametrize("what", ["ask", "add", "forget"])
def test_an_old_copy_is_refused(path, witness, tmp_path, what):
    with Store(path, witness=witness) as store:
        store.predict(law.rows("q", 1))
    shutil.copy(path, tmp_path / "backup")
    with Store(path, witness=witness) as store:
        if what == "ask":
            store.predict(law.rows("r", 1))
        elif what == "add":
            law.add_owner(store, "new")
        else:
            store.forget(["owner-0000"])
    shutil.copy(path, tmp_path / "newest")
    restore(tmp_path / "backup", path)
    for _ in range(2):
        with pytest.raises(StaleStoreError, match="old copy"):
            Store(path, witness=witness)
    restore(tmp_path / "newest", path)
    with Store(path, witness=witness) as store:
        assert not list(problems(store))


def test_without_a_witness_an_old_copy_cannot_be_told(path, tmp_path):
    shutil.copy(path, tmp_path / "backup")
    with Store(path) as store:
        store.predict(law.rows("r", 1))
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(StaleStoreError, match="a.store-head has seen"):
        Store(path)
    restore(tmp_path / "backup", path)
    with Store(path) as store:
        assert store.spent().sum() == 0  # what the document warns of


def test_a_copy_that_went_on_its_own_way_is_refused(path, witness, tmp_path):
    shutil.copy(path, tmp_path / "fork.store")
    with Store(path, witness=witness) as store:
        store.predict(law.rows("q", 1))
    with Store(tmp_path / "fork.store") as fork:
        fork.predict(law.rows("r", 3))
        fork.predict(law.rows("s", 3))
    with pytest.raises(StaleStoreError):
        Store(tmp_path / "fork.store", witness=witness)


def test_the_witness_remembers_from_the_first_opening_on(path, witness, tmp_path):
    shutil.copy(path, tmp_path / "backup")
    with Store(path) as store:
        store.predict(law.rows("q", 1))
    with Store(path, witness=witness):
        pass  # nothing is asked, and yet this is what was seen last
    restore(tmp_path / "backup", path)
    with pytest.raises(StaleStoreError, match="old copy"):
        Store(path, witness=witness)


def test_the_witness_of_another_store_and_a_damaged_one_are_refused(path, witness, tmp_path):
    law.new_store(tmp_path / "b.store")
    with Store(tmp_path / "b.store", witness=witness):
        pass
    with pytest.raises(StaleStoreError, match="witness is of store"):
        Store(path, witness=witness)
    for text in ("", "{}", "[]", json.dumps({"store": "x", "position": "x", "hash": ""})):
        witness.write_text(text)
        with pytest.raises(StoreError, match="witness"):
            Store(path, witness=witness)


def hold(pipe, path):
    law.no_ballast()
    store = Store(path)
    law.ask(store, "held", None, 3, pipe.send)
    signal.pause()


def test_a_second_process_is_told_who_has_the_store(path):
    here, there = context().Pipe(duplex=False)
    process = context().Process(target=hold, args=(there, str(path)))
    process.start()
    there.close()
    heard = law.Law()
    try:
        for _ in range(2):
            assert here.poll(60)
            heard.hear(here.recv())
        with pytest.raises(StoreLockedError, match=f"in use by process {process.pid} on "):
            Store(path)
        with pytest.raises(StoreError, match="exists already"):
            Store.create(path, law.settings())
    finally:
        process.kill()
        process.join(60)
    with Store(path) as store:  # the lock died with its holder
        assert heard.check(store) == law.Findings()
        assert len(heard.answered) == 1


def test_the_same_process_is_told_too_and_a_closed_store_says_so(path):
    with Store(path) as store, pytest.raises(StoreLockedError, match=f"process {os.getpid()} on "):
        Store(path)
    for call in (
        store.fold,
        store.flush,
        lambda: store.predict(law.rows("q", 1)),
        lambda: store.forget(["owner-0000"]),
    ):
        with pytest.raises(StoreError, match="is closed"):
            call()
    store.close()


@pytest.mark.parametrize("how", ["unlinked", "moved", "replaced"])
def test_a_file_that_is_gone_answers_nothing_any_more(path, tmp_path, how):
    with Store(path) as store:
        names = store.engine.ledger.owners()
        store.predict(law.rows("before", 1))
        copy = tmp_path / "copy"
        shutil.copy(path, copy)
        path.rename(tmp_path / "aside")
        if how == "unlinked":
            (tmp_path / "aside").unlink()
        elif how == "replaced":
            copy.rename(path)
        for _ in range(2):
            with pytest.raises(StoreError, match="moved, deleted or replaced"):
                store.predict(law.rows("after", 1))
            with pytest.raises(StoreError, match="moved, deleted or replaced"):
                store.forget(names[:1])
        store._closed = True  # there is nothing to fold into


def test_an_older_file_beside_a_newer_log_is_refused(path, tmp_path):
    Store(path).close()
    old = path.read_bytes()
    store = Store(path)
    for i in range(30):
        store.predict(law.rows(f"question {i}", 2), request_id=f"id {i}")
    empty_log(store.db, path)  # all of it is in the file now, and the log begins anew
    for i in range(30, 40):
        store.predict(law.rows(f"question {i}", 2), request_id=f"id {i}")
    mixed = tmp_path / "mixed"
    mixed.write_bytes(old)
    for end in ("-wal", "-head"):
        shutil.copy(f"{path}{end}", f"{mixed}{end}")
    store.close()
    with pytest.raises(StoreError, match="cannot be read|does not agree"):
        Store(mixed)


def test_a_store_remembers_that_it_has_a_witness(path, witness):
    with Store(path, witness=witness) as store:
        store.predict(law.rows("q", 1))
    with pytest.raises(StaleStoreError, match="none was given"):
        Store(path)
    witness.rename(witness.with_name("elsewhere"))
    with pytest.raises(StaleStoreError, match="does not exist"):
        Store(path, witness=witness)
    with Store(path, witness=witness, new_witness=True) as store:
        assert not list(problems(store))
    with Store(path, witness=witness):
        pass

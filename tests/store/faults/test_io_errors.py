"""The disk fails: nothing leaves that is not written, memory is read anew, and asking again gives the same."""

import random

import apsw
import pytest

from indknn import place
from indknn.errors import StoreError
from indknn.store import Store
from indknn.store.verify import problems
from store.faults import law
from store.faults.vfs import Disk

WHERE = [(kind, file) for kind in ("write", "sync") for file in ("a.store-wal", "a.store-head", "a.store")] + [
    ("cut", "a.store-wal")
]


class Fault:
    """Fails the nth matching event, and `times` in all, with one of SQLite's errors."""

    def __init__(self, kind, file, nth, times, error):
        self.kind, self.file, self.nth, self.left, self.error, self.hits = kind, file, nth, times, error, 0

    def __call__(self, event):
        if (event.kind, event.file) != (self.kind, self.file):
            return None
        self.nth -= 1
        if self.nth > 0 or self.left <= 0:
            return None
        self.left -= 1
        self.hits += 1
        return self.error("injected")


@pytest.fixture
def disk(tmp_path):
    law.watch_debits()
    law.no_ballast()
    (tmp_path / "live").mkdir()
    law.new_store(tmp_path / "live" / "a.store", owners=60, free_repeats=False)
    disk = Disk(tmp_path / "live")
    yield disk
    disk.close()


def history(store, seed, heard):
    """Asking, adding, forgetting, folding; each is tried again until it works. How often something failed."""
    rng, failures = random.Random(seed), 0
    names = sorted(heard.names)
    steps = [rng.choice(["ask", "ask", "batch", "forget", "fold", "add"]) for _ in range(14)]
    for i, what in enumerate([*steps, "ask", "forget"]):
        name, analyst = rng.choice(names), rng.choice(law.ANALYSTS)
        for _ in range(20):
            try:
                if what == "fold":
                    store.fold()
                elif what == "forget":
                    law.forget(store, name, heard.hear)
                elif what == "add":
                    heard.hear(("adding", name, i + 1))
                    law.add_owner(store, name, i + 1)
                else:
                    law.ask(store, f"{seed}-{i}", analyst, 1 + 4 * (what == "batch"), heard.hear)
                break
            except StoreError:
                failures += 1
        else:
            pytest.fail("it never worked again")
    return failures


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError], ids=["i/o error", "disk full"])
@pytest.mark.parametrize("where", WHERE, ids=lambda w: f"{w[0]} {w[1]}")
def test_an_error_of_the_disk_is_fail_stop_and_leaks_nothing(disk, tmp_path, where, error):
    rng = random.Random(repr(where))
    heard = law.Law([f"owner-{i:04d}" for i in range(60)])
    synchronous = "EXTRA" if where[1] == "a.store-head" else "FULL"  # every commit syncs the head
    hits, store = 0, Store(disk.folder / "a.store", synchronous=synchronous, vfs=disk.name)
    store.db.pragma("wal_autocheckpoint", 20)
    for round_ in range(6):
        disk.fault = fault = Fault(*where, rng.randint(1, 12), rng.choice([1, 1, 2, 5]), error)
        history(store, round_, heard)
        disk.fault = lambda event: None
        hits += fault.hits
        assert heard.check(store, retry=100) == law.Findings()
        assert not heard.traces(store.path)
    assert hits > 0
    # and the power goes: what a failed sync has dropped for good is not what anybody was told
    for _, image in disk.images(len(disk.events), rng):
        (tmp_path / "image").mkdir(exist_ok=True)
        for name, body in image.items():
            if body is not None:
                (tmp_path / "image" / name).write_bytes(body)
        with Store(tmp_path / "image" / "a.store") as after:
            assert heard.copy().check(after, retry=100) == law.Findings()
    store.close()
    with Store(store.path) as again:
        assert heard.check(again, retry=100) == law.Findings()


def test_while_the_disk_is_broken_nothing_works_and_afterwards_everything(disk):
    store = Store(disk.folder / "a.store", vfs=disk.name)
    names = store.engine.ledger.owners()
    first = store.predict(law.rows("first", 3), request_id="first")
    before = store.spent(names)
    disk.fault = Fault("sync", "a.store-wal", 1, 10**9, apsw.IOError)
    for _ in range(3):
        with pytest.raises(StoreError):
            store.predict(law.rows("second", 3), request_id="second")
        with pytest.raises(StoreError):
            store.add(law.rows("x", 1), ["a"], ["x"])
        with pytest.raises(StoreError):
            store.forget([names[0]])
    disk.fault = lambda event: None
    assert store.predict(law.rows("first", 3), request_id="first").tolist() == first.tolist()
    assert (store.spent(names) >= before).all()
    second = store.predict(law.rows("second", 3), request_id="second")
    assert store.predict(law.rows("second", 3), request_id="second").tolist() == second.tolist()
    assert store.db.execute("SELECT count(*) FROM answers").get == 6
    assert not list(problems(store))
    store.close()


def test_errors_while_reading_are_store_errors_and_pass(disk, monkeypatch):
    store = Store(disk.folder / "a.store", vfs=disk.name)
    answers = store.predict(law.rows("q", 3), request_id="q")
    disk.fault = Fault("sync", "a.store-wal", 1, 1, apsw.IOError)
    with pytest.raises(StoreError):
        store.predict(law.rows("r", 3))
    disk.fault = lambda event: None
    disk.unreadable = True
    for _ in range(3):  # memory must be read anew, and cannot be
        with pytest.raises(StoreError):
            store.predict(law.rows("q", 3), request_id="q")
        with pytest.raises(StoreError):
            store.spent()
    disk.unreadable = False
    assert store.predict(law.rows("q", 3), request_id="q").tolist() == answers.tolist()
    assert not list(problems(store))
    store.close()


def test_a_witness_that_cannot_be_written_stops_the_store(disk, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    with Store(disk.folder / "a.store", witness=tmp_path / "elsewhere" / "w") as store:
        with monkeypatch.context() as patch:
            patch.setattr(place, "sync_file", lambda path: (_ for _ in ()).throw(OSError("no space")))
            with pytest.raises(StoreError, match="witness"):
                store.predict(law.rows("q", 1), request_id="q")
            with pytest.raises(StoreError, match="witness"):
                store.add(law.rows("x", 1), ["a"], ["x"])
        assert len(store.predict(law.rows("q", 1), request_id="q")) == 1
        assert store.db.execute("SELECT count(*) FROM answers").get == 1
        assert not list(problems(store))

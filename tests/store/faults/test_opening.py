"""What is not a store is refused in words and left as it was; what was damaged is not believed."""

import random
import shutil
import threading

import apsw
import numpy as np
import pytest

from indknn.errors import IndKNNError, InvalidInputError, StoreError
from indknn.settings import Settings
from indknn.store import Store, database, filehome
from indknn.store.backup import backup
from indknn.store.database import VERSION
from indknn.store.verify import problems
from store.faults import law


@pytest.fixture
def path(tmp_path):
    law.no_ballast()
    path = tmp_path / "a.store"
    names = law.new_store(path)
    with Store(path) as store:
        store.predict(law.rows("q", 5), request_id="q")
        store.predict(law.rows("r", 5), "alice")
        store.forget(names[:3])
    return path


def foreign(file):
    db = apsw.Connection(str(file))
    db.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1); PRAGMA user_version = 1")
    db.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"not a database, but long enough to be one" * 1000),
        lambda file: file.write_bytes(b"SQLite format 3\0" + bytes(5000)),
        foreign,
    ],
    ids=["empty", "text", "broken header", "another database"],
)
def test_what_is_not_a_store_is_refused_and_left_as_it_was(tmp_path, make):
    file = tmp_path / "other"
    make(file)
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match="other"):
            Store(file)
    assert file.read_bytes() == before
    with pytest.raises(StoreError, match="exists already"):
        Store.create(file, law.settings())


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        Store(tmp_path / "nothing")
    with pytest.raises(StoreError):
        Store(tmp_path)


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_file_of_another_version_is_refused_in_one_line(path, version):
    db = apsw.Connection(str(path))
    db.pragma("user_version", version)
    db.close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match=f"has version {version} of .* supports version {VERSION}$"):
            Store(path, read_only=read_only)


def test_creation_that_dies_leaves_no_store_and_can_be_done_again(tmp_path, monkeypatch):
    path = tmp_path / "a.store"
    for module, name in ((filehome, "connect"), (database, "set_meta")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *_, **__: (_ for _ in ()).throw(MemoryError))
            with pytest.raises(MemoryError):
                Store.create(path, law.settings())
        assert not path.exists()
    with pytest.raises((TypeError, IndKNNError)):
        Store.create(path, Settings(n_features=2, classes=(b"a", b"b")))  # no JSON
    assert not path.exists()
    law.new_store(path)


def test_of_several_who_create_one_store_one_does(tmp_path):
    made, refused = [], []

    def create():
        try:
            made.append(Store.create(tmp_path / "a.store", law.settings()))
        except StoreError as error:
            refused.append(error)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = {store._state.store_id for store in made}
    assert len(made) + len(refused) == 6
    assert len(made) <= 1
    for store in made:
        store.close()
    with Store(tmp_path / "a.store") as store:
        assert not ids or store._state.store_id in ids
        assert store.db.execute("SELECT count(*) FROM audit").get == 1


def test_damage_is_refused_or_reported(path, tmp_path):
    """Random bytes of the file are changed: no budget may be wrong without a word."""
    whole = path.read_bytes()
    with Store(path) as store:
        names = [f"owner-{i:04d}" for i in range(law.OWNERS)]
        truth = [store.spent(names, analyst).tolist() for analyst in law.ANALYSTS]
    rng, copy = random.Random(5), tmp_path / "copy.store"
    noticed = 0
    for _ in range(60):
        body = bytearray(whole)
        at = rng.randrange(len(body))
        size = rng.choice([1, 8, 512, 4096])
        body[at : at + size] = rng.randbytes(len(body[at : at + size]))
        noticed += _noticed(copy, bytes(body), names, truth)
    assert noticed > 10


def test_truncated_files_are_refused_or_reported(path, tmp_path):
    whole = path.read_bytes()
    with Store(path) as store:
        names = store.engine.ledger.owners()
        truth = [store.spent(names, analyst).tolist() for analyst in law.ANALYSTS]
    for size in range(0, len(whole), max(512, len(whole) // 40)):
        noticed = _noticed(tmp_path / "copy.store", whole[:size], names, truth)
        assert noticed or size > len(whole) * 0.9, size  # the end may be a page that nothing uses


def _noticed(copy, body, names, truth):
    copy.write_bytes(body)
    for end in law.SIDE_FILES[1:4]:
        copy.with_name(copy.name + end).unlink(missing_ok=True)
    try:
        with Store(copy) as store:
            if list(problems(store)):
                return True
            spent = [store.spent(names, analyst).tolist() for analyst in law.ANALYSTS]
    except StoreError:
        return True
    assert spent == truth, "budgets changed, and nobody noticed"
    return False


def test_balances_that_were_edited_are_reported(path):
    Store(path).close()
    db = apsw.Connection(str(path))
    scope, block, body = db.execute("SELECT * FROM balances").fetchone()
    spent = np.frombuffer(body, "<i8").copy()
    first, second = np.flatnonzero(spent)[:2]
    spent[second] += 2 * spent[first]
    spent[first] = -spent[first]  # the sum stays
    db.execute("UPDATE balances SET spent = ? WHERE scope = ? AND block = ?", (spent.tobytes(), scope, block))
    db.close()
    with pytest.raises(StoreError, match="does not agree with its audit trail"):
        Store(path)


def test_names_that_are_no_names_are_refused_and_strange_ones_survive(path):
    strange = [2**200, -5, "\0", "x" * 5000]
    with Store(path) as store:
        for bad in ("\udc80", True, 1.5, None, b"7", np.nan, "", np.datetime64("2020-01-01", "ns"), np.timedelta64(5)):
            with pytest.raises(InvalidInputError):
                store.add(law.rows("x", 1), ["a"], [bad])
        with pytest.raises(InvalidInputError):
            store.add(law.rows("x", 2), ["a", "b"], ["one"])
        engine = store.engine
        with pytest.raises(InvalidInputError):
            store.add(law.rows("x", 1), ["no such label"], ["one"])
        assert store.engine is engine  # refused before anything was touched: no need to read it all again
        store.add(law.rows("y", len(strange)), ["a"] * len(strange), strange)
        owners = store.engine.ledger.owners()
    with Store(path) as store:
        assert store.engine.ledger.owners() == owners
        assert store.forget(strange)["records"] == len(strange)
        assert not list(problems(store))


def test_a_store_reached_by_a_link_has_the_same_lock(path, tmp_path):
    link = tmp_path / "link.store"
    link.symlink_to(path)
    with Store(path), pytest.raises(StoreError, match="in use by process"):
        Store(link)


def test_copies_of_the_closed_file_alone_are_whole(path, tmp_path):
    shutil.copy(path, tmp_path / "b.store")
    with Store(path) as one, Store(tmp_path / "b.store") as other:
        assert not list(problems(other))
        assert one.spent().tolist() == other.spent().tolist()


def test_what_a_lost_store_left_is_not_deleted_by_a_new_one_or_a_backup(path, tmp_path):
    """Its log and its head know what was spent, and SQLite would take the log for the new store's."""
    with Store(path) as store:
        backup(store, tmp_path / "old.store")
        law.add_owner(store, "somebody else")
        log = path.with_name(path.name + "-wal").read_bytes()
    path.unlink()
    path.with_name(path.name + "-wal").write_bytes(log)
    for end in ("-head", "-wal"):
        with pytest.raises(StoreError, match=f"a.store{end} is left of a store that was here"):
            Store.create(path, law.settings())
        with Store(tmp_path / "old.store", read_only=True) as old, pytest.raises(StoreError, match="is left of"):
            backup(old, path, keys=False)
        path.with_name(path.name + end).rename(tmp_path / f"gone{end}")
    with Store.create(path, law.settings()) as store:
        assert store.engine.ledger.owners() == []
        assert not list(problems(store))


def test_analysts_and_requests_that_cannot_be_written_are_refused_before_anybody_pays(path):
    with Store(path) as store:
        engine, spent = store.engine, store.spent().tolist()
        for bad in (5, b"x", "\udc80"):
            with pytest.raises(InvalidInputError, match="request_id must be"):
                store.predict(law.rows("a", 1), request_id=bad)
            with pytest.raises(InvalidInputError, match="analyst must be"):
                store.predict(law.rows("a", 1), analyst=bad)
        assert store.engine is engine
        assert store.spent().tolist() == spent
        store.add_analyst("\N{GREEK SMALL LETTER ALPHA} '")
        odd = store.predict(law.rows("a", 2), analyst="\N{GREEK SMALL LETTER ALPHA} '", request_id="\0\n")
    with Store(path) as store:
        again = store.predict(law.rows("a", 2), analyst="\N{GREEK SMALL LETTER ALPHA} '", request_id="\0\n")
        assert again.tolist() == odd.tolist()
        assert not list(problems(store))


@pytest.mark.parametrize("table", ["audit", "answers", "balances", "meta", "owners", "records", "scopes"])
def test_a_table_that_is_damaged_or_emptied_is_refused_or_reported(path, tmp_path, table):
    db = apsw.Connection(str(path))
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
    size = db.pragma("page_size")
    db.close()
    body = bytearray(path.read_bytes())
    body[(root - 1) * size : root * size] = random.Random(table).randbytes(size)
    assert _noticed(tmp_path / "copy.store", bytes(body), [], [[], []])
    db = apsw.Connection(str(path))
    db.execute(f"DELETE FROM {table}")
    db.close()
    assert _noticed(tmp_path / "copy.store", path.read_bytes(), [], [[], []])

"""Whatever was answered is in what opens, or opening refuses: without a witness, whatever becomes of the log."""

import os
import random
import shutil

import pytest

from indknn.errors import StaleStoreError, StoreError
from indknn.place import private_file
from indknn.store import Store
from indknn.store.backup import backup
from indknn.store.filehome import head_path, log_path
from indknn.store.keyfile import create, keys_path, read_key_file
from indknn.store.verify import Snapshot, problems
from store.faults import law
from store.faults.vfs import Disk


@pytest.fixture
def path(tmp_path):
    law.no_ballast()
    law.new_store(tmp_path / "a.store", free_repeats=False)
    return tmp_path / "a.store"


@pytest.fixture
def crashed(path, tmp_path):
    """The files of a process that answered and was killed, and what it had charged."""
    folder = tmp_path / "crashed"
    folder.mkdir()
    with Store(path) as store:
        for i in range(5):
            store.predict(law.rows(f"q{i}", 2), request_id=f"q{i}")
        law.copy_all(path, folder / "b.store")
        spent = store.spent().sum()
    assert log_path(folder / "b.store").stat().st_size
    return folder / "b.store", spent


def refused(path, match=None):
    """Not opened, neither for writing nor for reading, and left as it was."""
    before = {end: law.body_of(path.with_name(path.name + end)) for end in law.SIDE_FILES[:3]}
    for options in ({}, {}, {"read_only": True}):
        with pytest.raises(StoreError, match=None if options else match):
            Store(path, **options)
    return before == {end: law.body_of(path.with_name(path.name + end)) for end in law.SIDE_FILES[:3]}


def test_all_files_of_a_process_that_died_open(crashed):
    path, spent = crashed
    with Store(path) as store:
        assert store.spent().sum() == spent
        assert not list(problems(store))
    with Store(path, read_only=True) as store:
        assert store.spent().sum() == spent


@pytest.mark.parametrize("how", ["removed", "emptied", "cut", "flipped", "of another store", "older"])
def test_a_damaged_log_is_refused(crashed, tmp_path, how):
    path, _ = crashed
    log = log_path(path)
    body = bytearray(log.read_bytes())
    if how == "removed":
        log.unlink()
    elif how == "cut":
        log.write_bytes(body[: -len(body) // 8])
    elif how == "flipped":
        body[len(body) // 2] ^= 1
        log.write_bytes(body)
    elif how == "emptied":
        log.write_bytes(b"")
    else:
        other = tmp_path / "other.store"
        if how == "older":
            shutil.copy(tmp_path / "a.store", other)
        else:
            law.new_store(other)
        with Store(other) as store:
            store.predict(law.rows("other", 1))
            shutil.copy(log_path(other), log)
    assert refused(path) or how in {"of another store", "older"}


@pytest.mark.parametrize("how", ["hard link", "moved alone", "copied alone", "copied with its log"])
def test_a_file_without_its_head_is_refused_unless_it_was_closed(crashed, path, tmp_path, how):
    other = tmp_path / "c.store"
    for file in (crashed[0], path):
        for left in (other, log_path(other)):
            left.unlink(missing_ok=True)
        if how == "moved alone":
            other = shutil.copytree(file.parent, tmp_path / f"moved from {file.name}") / "c.store"
            (other.parent / file.name).rename(other)
        else:
            (os.link if how == "hard link" else shutil.copy)(file, other)
        if how.endswith("log") and log_path(file).exists():
            shutil.copy(log_path(file), log_path(other))
        if file != path:
            assert refused(other, match="c.store-head is missing")
    with Store(other) as closed:
        assert not list(problems(closed))


def test_a_symbolic_link_leads_to_all_files(crashed, tmp_path):
    (tmp_path / "link.store").symlink_to(crashed[0])
    with Store(tmp_path / "link.store") as store:
        assert store.spent().sum() == crashed[1]


@pytest.mark.parametrize("how", ["foreign", "damaged", "emptied"])
def test_a_head_that_says_nothing_is_refused(crashed, path, how):
    for store in (crashed[0], path):
        body = bytearray(head_path(store).read_bytes())
        if how == "foreign":
            law.new_store(store.with_name("other.store"))
            body = head_path(store.with_name("other.store")).read_bytes()
        elif how == "damaged":
            body[40] ^= 1
            body[4096 + 40] ^= 1
        head_path(store).write_bytes(b"" if how == "emptied" else body)
        assert refused(store, match="is damaged, or of another store")
    head_path(path).unlink()
    with Store(path) as closed:  # what the message says
        assert not list(problems(closed))


def test_an_older_log_and_head_beside_a_newer_file_are_refused(path, tmp_path):
    """SQLite would show the old pages of the log instead of the newer ones of the file."""
    copy = tmp_path / "copy.store"
    with Store(path) as store:
        store.db.pragma("wal_autocheckpoint", 0)
        store.predict(law.rows("q0", 1))
        for end in ("-wal", "-head"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
        store.predict(law.rows("q1", 1))
        store.db.wal_checkpoint()  # the same pages once more, now in the file
        shutil.copy(path, copy)
    with pytest.raises(StoreError):
        Store(copy)


def test_a_closed_store_may_be_moved_with_its_files_or_alone(path, tmp_path):
    with Store(path) as store:
        store.predict(law.rows("q", 1))
        spent = store.spent().sum()
    for ends in (("", "-head"), ("",)):
        (tmp_path / "new").mkdir(exist_ok=True)
        moved = tmp_path / "new" / f"{len(ends)}.store"
        for end in ends:
            shutil.copy(f"{path}{end}", f"{moved}{end}")
        for options in ({"read_only": True}, {}):
            with Store(moved, **options) as store:
                assert store.spent().sum() == spent


def test_a_newer_head_of_the_same_store_refuses_an_old_copy(path, tmp_path):
    shutil.copy(path, tmp_path / "old")
    with Store(path) as store:
        store.predict(law.rows("q", 1))
    shutil.copy(tmp_path / "old", path)
    with pytest.raises(StaleStoreError, match="a.store-head has seen"):
        Store(path)


@pytest.mark.parametrize("which", ["log", "head"])
def test_a_store_whose_log_or_head_is_deleted_while_it_is_open_stops_and_recovers(path, which):
    with Store(path) as store:
        store.predict(law.rows("before", 1), request_id="before")
        spent = store.spent().sum()
        (log_path if which == "log" else head_path)(path).unlink()
        if which == "head":
            assert any("head" in problem for problem in problems(store))
        with pytest.raises(StoreError, match="moved, deleted or replaced"):
            store.predict(law.rows("after", 1), request_id="after")
        store.predict(law.rows("after", 1), request_id="after")
        assert store.spent().sum() > spent
        assert not list(problems(store))
    with Store(path) as store:
        assert store.db.execute("SELECT count(*) FROM answers").get == 2


def test_verify_beside_answers_reads_the_head(path):
    with Store(path) as store:
        store.predict(law.rows("q", 1))
        body = bytearray(head_path(path).read_bytes())
        body[40] ^= 1
        body[4096 + 40] ^= 1
        with head_path(path).open("r+b") as head:
            head.write(body)
        snapshot = Snapshot(store)
        while not snapshot.copy_some():
            pass
        assert any("head" in problem for problem in snapshot.problems()[0])


@pytest.mark.parametrize("synchronous", ["FULL", "EXTRA"])
def test_the_head_is_written_before_an_answer_leaves(path, tmp_path, synchronous):
    copy = tmp_path / "copy.store"
    with Store(path, synchronous=synchronous) as store:
        for i in range(6):
            store.predict(law.rows(f"q{i}", 1))
            law.copy_all(path, copy)
            log_path(copy).unlink()
            with pytest.raises(StaleStoreError, match="log is damaged, cut or lost"):
                Store(copy)


def test_after_a_power_cut_a_lost_log_is_refused_if_every_commit_waits_for_the_head(path, tmp_path):
    (tmp_path / "live").mkdir()
    live, image = tmp_path / "live" / "a.store", tmp_path / "image.store"
    law.copy_all(path, live)
    disk = Disk(live.parent)
    try:
        with Store(live, synchronous="EXTRA", vfs=disk.name) as store:
            for i in range(4):
                store.predict(law.rows(f"q{i}", 1))
                ((_, files),) = disk.images(len(disk.events), random.Random(i), modes=["dropped"])
                for end in ("", "-head"):  # and not the log
                    image.with_name(image.name + end).write_bytes(files["a.store" + end])
                with pytest.raises(StaleStoreError, match="log is damaged, cut or lost"):
                    Store(image)
    finally:
        disk.close()


def test_a_backup_of_a_store_in_use_is_whole_private_and_opens_alone(path, tmp_path):
    create(keys_path(path), "analyst", "ann")
    target, before = tmp_path / "backup.store", os.umask(0)
    try:
        with Store(path) as store:
            store.predict(law.rows("q", 2), "alice", request_id="q")
            facts = backup(store, target)
            spent, answers = store.spent(), store.predict(law.rows("q", 2), "alice", request_id="q").tolist()
            with pytest.raises(StoreError, match="exists already"):
                backup(store, target)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("backup.store*")} == {0o600}
    assert sorted(file.name for file in tmp_path.glob("backup.store*")) == ["backup.store", "backup.store.keys"]
    assert read_key_file(keys_path(target)) == read_key_file(keys_path(path))
    for options in ({"read_only": True}, {}):
        with Store(target, **options) as copy:
            assert copy.spent().tolist() == spent.tolist()
            assert not list(problems(copy))
            assert (
                facts["audit_hash"]
                == copy.db.execute("SELECT hash FROM audit ORDER BY position")
                .fetchall()[facts["audit_entries"] - 1][0]
                .hex()
            )
    with Store(target) as copy:
        assert copy.predict(law.rows("q", 2), "alice", request_id="q").tolist() == answers


def test_a_backup_that_fails_leaves_nothing(path, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("no space")

    create(keys_path(path), "analyst", "alice")
    with Store(path) as store, monkeypatch.context() as patch:
        patch.setattr("indknn.store.filehome.sync_file", broken)
        with pytest.raises(StoreError, match="cannot be made: no space"):
            backup(store, tmp_path / "backup.store")
    assert not list(tmp_path.glob("backup*"))


def test_a_private_file_is_whole_or_not_there(tmp_path):
    file, before = tmp_path / "receipt.json", os.umask(0)
    try:
        file.write_text("old")
        with pytest.raises(ZeroDivisionError), private_file(file) as stream:
            stream.write(f"half {1 / 0}")
        assert file.read_text() == "old"
        with private_file(file) as stream:
            stream.write("whole")
    finally:
        os.umask(before)
    assert file.read_text() == "whole"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["receipt.json"]

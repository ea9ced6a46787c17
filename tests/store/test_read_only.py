"""Row 11: verify and statements work where nothing can be written, and write nothing."""

import json
import os
import shutil
import subprocess
import sys

import apsw
import pytest

from conftest import blobs
from helpers.asking import declared
from indknn.errors import StoreError, StoreLockedError
from indknn.ledger.figures import statement
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.filehome import empty_log, head_path
from indknn.store.reports import status
from indknn.store.verify import problems

X, Y = blobs(320, 3, 5)
SETTINGS = Settings(n_features=5, classes=(0, 1, 2), tau=0.4, sigma2=0.5, max_queries=60, reuse="none")
# As root no mode stops a writer, so the folder is mounted read-only, for this process alone.
MOUNTED = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with Store.create(folder / "people.store", SETTINGS, witness=tmp_path / "w") as store:
        declared(store, "alice", "bob").add(X[:300], Y[:300], [f"p{i % 100}" for i in range(300)])
        store.predict(X[300:], "alice")
    return folder / "people.store"


def everything(folder):
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}


def run(path, *words):
    """A command, in a process for which the folder of the store is read-only."""
    command = [sys.executable, "-m", "indknn", *map(str, words)]
    if os.geteuid() == 0:
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            pytest.skip("root may write everywhere, and may not mount here")
        command = ["unshare", "-m", "sh", "-c", MOUNTED, "sh", str(path.parent), *command]
    else:
        path.parent.chmod(0o555)
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    finally:
        path.parent.chmod(0o755)


def test_the_commands_that_look_work_in_a_read_only_folder(path, tmp_path):
    before = everything(path.parent)
    with Store(path, witness=tmp_path / "w") as store:
        facts, view = statement(store.engine, "p3"), status(store)
    assert everything(path.parent).keys() == before.keys()
    before, seen = everything(path.parent), (tmp_path / "w").read_bytes()  # opening wrote the time into the witness
    options = ("--witness", tmp_path / "w")
    found = {
        "verify": run(path, "verify", path, *options),
        "owner": run(path, "owner", path, "p3", "--json", *options),
        "status": run(path, "status", path, "--json", *options),
        "export": run(path, "export", "spent", path, "-o", tmp_path / "x", *options),
    }
    for name, result in found.items():
        assert result.returncode == 0, (name, result.stderr)
        assert "cannot be written: nothing notices another process" in result.stderr
    assert "all is well" in found["verify"].stdout
    assert json.loads(found["owner"].stdout) == facts
    shown = json.loads(found["status"].stdout)
    assert sum(analyst["answers"] for analyst in shown.pop("by_analyst")) == view["answers"]
    assert shown == view
    assert len((tmp_path / "x").read_text().splitlines()) == 100
    assert everything(path.parent) == before
    assert (tmp_path / "w").read_bytes() == seen


def test_damage_is_found_there_too(path, tmp_path):
    db = apsw.Connection(str(path))
    db.execute("UPDATE answers SET label = 1 - label WHERE label < 2")
    db.close()
    result = run(path, "verify", path, "--witness", tmp_path / "w")
    assert result.returncode == 1
    assert "does not agree with its audit trail" in result.stdout


def test_an_old_copy_and_one_without_its_witness_are_refused_there_too(path, tmp_path):
    old = path.read_bytes()
    with Store(path, witness=tmp_path / "w") as store:
        store.forget(["p1"])
    path.write_bytes(old)
    result = run(path, "verify", path, "--witness", tmp_path / "w")
    assert "which people.store-head has seen" in result.stderr
    head_path(path).unlink()  # what somebody does who restores a backup
    for options, words in ((["--witness", tmp_path / "w"], "old copy"), ([], "has a witness")):
        result = run(path, "verify", path, *options)
        assert result.returncode == 3
        assert words in result.stderr


def test_changes_that_are_still_in_the_log_are_not_overlooked(path, tmp_path):
    with Store(path, witness=tmp_path / "w") as store:
        store.predict(X[:3], "bob")
        for name in (path.name, path.name + "-wal"):
            shutil.copy(path.with_name(name), tmp_path / name)
    assert (tmp_path / "people.store-wal").stat().st_size
    with pytest.raises(StoreError, match="holds changes that are not in the store yet"):
        Store(tmp_path / path.name, witness=tmp_path / "w", read_only=True)


def test_a_store_that_was_not_closed_needs_its_head_there_too(path, tmp_path):
    """The log is empty, and the file says that it is open."""
    copy = path.parent / "copy.store"
    with Store(path, witness=tmp_path / "w") as store:
        store.predict(X[:3], "bob")
        empty_log(store.db, path)
        for end in ("", "-head"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
        assert run(copy, "verify", copy, "--witness", tmp_path / "w").returncode == 0
        head_path(copy).unlink()
        result = run(copy, "verify", copy, "--witness", tmp_path / "w")
    assert result.returncode == 3
    assert "copy.store-head is missing" in result.stderr


def test_nothing_can_be_changed_or_answered(path, tmp_path):
    before = everything(path.parent)
    with Store(path, witness=tmp_path / "w", read_only=True) as store:
        assert not list(problems(store))
        for change in (lambda: store.predict(X[:1]), lambda: store.forget(["p1"]), store.purge):
            with pytest.raises(StoreError):
                change()
        with pytest.raises(StoreError):
            store.add(X[:1], Y[:1], ["new"])
    assert everything(path.parent) == before


def test_a_writer_and_a_reader_keep_each_other_out_and_readers_share(path, tmp_path):
    options = {"witness": tmp_path / "w"}
    with Store(path, **options), pytest.raises(StoreLockedError):
        Store(path, read_only=True, **options)
    with Store(path, read_only=True, **options) as one, Store(path, read_only=True, **options) as other:
        assert status(one) == status(other)
        with pytest.raises(StoreLockedError):
            Store(path, **options)

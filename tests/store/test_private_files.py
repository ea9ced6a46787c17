"""What the commands write about people is for one user alone, whatever the umask says."""

import json
import os
import stat

import numpy as np
import pytest

from conftest import blobs
from helpers.commands import run
from indknn.store import Store
from indknn.store.filehome import head_path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    X, y = blobs(120, 2, 3)
    np.savez(tmp_path / "people.npz", X=X[:100], y=y[:100], owners=np.array([f"p{i}" for i in range(100)]))
    np.savez(tmp_path / "queries.npz", X=X[100:])
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def ok(*words):
    return run(*words, code=0).output


def test_everything_about_people_is_private(folder):
    store, out = folder / "a.store", folder / "out"
    out.mkdir()
    given = set(folder.iterdir())
    ok("init", store, "--epsilon", "1", "--tau", "0.4", "--mode", "votes")
    ok("add", store, folder / "people.npz", "--witness", folder / "witness")
    ok("keys", "create", store, "--role", "analyst", "--name", "ann")
    (out / "answers.csv").write_text("old")  # readable by everybody
    for end in ("csv", "npz", "parquet"):
        ok("predict", store, folder / "queries.npz", "-o", out / f"answers.{end}", "--witness", folder / "witness")
    ok("forget", store, "p1", "--receipt", out / "receipt.json", "--witness", folder / "witness")
    for what in ("audit", "answers", "spent"):
        ok("export", what, store, "-o", out / f"{what}.jsonl", "--witness", folder / "witness")
    ok("backup", store, out / "backup.store", "--witness", folder / "witness")
    assert json.loads((out / "receipt.json").read_text())["owners"] == ["p1"]
    made = [file for file in (*folder.iterdir(), *out.iterdir()) if file.is_file() and file not in given]
    assert len(made) > 12
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in made} == {file.name: 0o600 for file in made}


def test_a_receipt_can_go_to_a_device(folder):
    store = folder / "a.store"
    ok("init", store, "--epsilon", "1")
    ok("add", store, folder / "people.npz")
    ok("forget", store, "p1", "--receipt", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_the_command_backup_makes_a_copy_that_opens_and_overwrites_nothing(folder):
    store, copy = folder / "a.store", folder / "b.store"
    ok("init", store, "--epsilon", "1", "--tau", "0.4", "--mode", "votes")
    ok("add", store, folder / "people.npz")
    ok("predict", store, folder / "queries.npz", "-o", folder / "answers.csv")
    facts = json.loads(ok("backup", store, copy, "--json"))
    assert facts["keys"] is None
    assert not head_path(copy).exists()
    assert "all is well" in ok("verify", copy)
    with Store(store) as one, Store(copy) as other:
        assert one.spent().tolist() == other.spent().tolist()
        locked = run("backup", str(store), str(folder / "c.store"))
        assert locked.exit_code == 3
    there = run("backup", str(store), str(copy))
    assert there.exit_code == 3
    assert "overwrites nothing" in there.output

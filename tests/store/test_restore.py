"""A backup is put back only if nothing was spent since; nothing that was spent is ever given back."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from indknn.cli.app import app
from indknn.errors import StaleStoreError, StoreError, StoreLockedError
from indknn.store import Store
from indknn.store.backup import backup, restore
from indknn.store.filehome import head_path, log_path
from indknn.store.keyfile import create, keys_path, read_key_file, revoke
from indknn.store.verify import problems
from server.serving import make_store, rows


@pytest.fixture
def path(tmp_path):
    make_store(tmp_path / "a.store").close()
    return tmp_path / "a.store"


@pytest.fixture
def witness(tmp_path):
    return tmp_path / "witness"


def copied(path, target, witness=None):
    with Store(path, witness=witness) as store:
        store.predict(rows(len(target.name) + ord(target.name[0]), 3))
        backup(store, target)
        return store.spent()


def test_the_newest_copy_is_put_back_and_nothing_is_deleted(path, tmp_path, witness):
    spent = copied(path, tmp_path / "b.store", witness)
    path.write_bytes(b"x" * 5000)
    facts = restore(tmp_path / "b.store", path, witness)
    assert len(facts["moved"]) == 1  # the head stays: the copy reaches it
    assert (tmp_path / facts["moved"][0]).read_bytes() == b"x" * 5000
    with Store(path, witness=witness) as store:
        assert not list(problems(store))
        assert (store.spent() == spent).all()
        store.predict(rows(2))
    with pytest.raises(StaleStoreError):  # now it is old
        restore(tmp_path / "b.store", path, witness)


def test_a_restore_that_was_interrupted_lets_no_older_copy_in(path, tmp_path, monkeypatch):
    copied(path, tmp_path / "old.store")
    copied(path, tmp_path / "new.store")
    rename = Path.rename

    def die(self, target):
        if self.name.endswith(".restored"):
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            restore(tmp_path / "new.store", path)
    assert not path.exists()
    with pytest.raises(StaleStoreError):
        restore(tmp_path / "old.store", path)
    restore(tmp_path / "new.store", path)
    with Store(path) as store:
        assert not list(problems(store))


def test_a_head_that_cannot_be_read_goes_if_the_witness_vouches(path, tmp_path, witness):
    copied(path, tmp_path / "b.store", witness)
    head_path(path).write_bytes(b"x" * 8192)
    assert len(restore(tmp_path / "b.store", path, witness)["moved"]) == 2
    Store(path, witness=witness).close()


@pytest.mark.parametrize("knows", ["witness", "head"])
def test_a_copy_from_before_the_last_answer_is_refused_with_what_is_lost(path, tmp_path, witness, knows):
    witness = witness if knows == "witness" else None
    copied(path, tmp_path / "b.store", witness)
    with Store(path, witness=witness) as store:
        store.predict(rows(2))
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(StaleStoreError, match=r"ends with entry \d+"):
        restore(tmp_path / "b.store", path, witness)
    after = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert {f: b for f, b in after.items() if not f.name.endswith(".lock")} == {
        f: b for f, b in before.items() if not f.name.endswith(".lock")
    }
    if knows == "witness":
        head_path(path).unlink()
        with pytest.raises(StaleStoreError, match="old copy"):
            restore(tmp_path / "b.store", path, witness)


def test_a_copy_with_a_witness_is_not_put_back_without_it(path, tmp_path, witness):
    copied(path, tmp_path / "b.store", witness)
    with pytest.raises(StaleStoreError, match="has a witness"):
        restore(tmp_path / "b.store", path)


def test_a_head_that_cannot_be_read_is_no_permission(path, tmp_path):
    copied(path, tmp_path / "b.store")
    head_path(path).write_bytes(b"x" * 8192)
    with pytest.raises(StaleStoreError, match="cannot be read, so nobody can tell"):
        restore(tmp_path / "b.store", path)


def test_without_a_head_the_store_that_is_there_says_how_far_it_was(path, tmp_path):
    copied(path, tmp_path / "old.store")
    spent = copied(path, tmp_path / "new.store")
    head_path(path).unlink()  # a store that was closed opens without it
    with pytest.raises(StaleStoreError, match="what people spent since then is lost"):
        restore(tmp_path / "old.store", path)
    restore(tmp_path / "new.store", path)
    with Store(path) as store:
        assert (store.spent() == spent).all()


def test_a_log_without_a_head_is_no_permission(path, tmp_path):
    copied(path, tmp_path / "b.store")
    head_path(path).unlink()
    log_path(path).write_bytes(b"x" * 5000)
    with pytest.raises(StaleStoreError, match="nobody can tell"):
        restore(tmp_path / "b.store", path)


def test_a_store_in_use_and_a_damaged_copy_are_left_alone(path, tmp_path):
    copied(path, tmp_path / "b.store")
    with Store(path), pytest.raises(StoreLockedError):
        restore(tmp_path / "b.store", path)
    body = bytearray((tmp_path / "b.store").read_bytes())
    body[len(body) // 2 :] = bytes(len(body) - len(body) // 2)
    (tmp_path / "b.store").write_bytes(body)
    with pytest.raises(StoreError):
        restore(tmp_path / "b.store", path)
    Store(path).close()


def test_what_was_there_comes_back_if_the_copy_cannot_be_written(path, tmp_path, monkeypatch):
    copied(path, tmp_path / "b.store")

    def fail(*_, **__):
        raise StoreError("the disk is full")

    monkeypatch.setattr("indknn.store.backup.backup", fail)
    with pytest.raises(StoreError, match="full"):
        restore(tmp_path / "b.store", path)
    Store(path).close()


def test_a_key_that_was_revoked_since_stays_revoked(path, tmp_path):
    key, _ = create(keys_path(path), "admin", "root")
    copied(path, tmp_path / "b.store")
    revoke(keys_path(path), key.id)
    restore(tmp_path / "b.store", path)
    assert [one.revoked is not None for one in read_key_file(keys_path(path)).keys] == [True]
    keys_path(path).unlink()
    restore(tmp_path / "b.store", path)
    assert [one.revoked is not None for one in read_key_file(keys_path(path)).keys] == [False]


def test_the_command(path, tmp_path, witness):
    copied(path, tmp_path / "b.store", witness)
    words = ["restore", str(tmp_path / "b.store"), str(path), "--witness", str(witness)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "what was there is now a.store.before-" in done.output
    with Store(path, witness=witness) as store:
        store.predict(rows(2))
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 3
    assert "budgets were spent since" in refused.output

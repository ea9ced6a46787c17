"""A full disk: nothing is answered, nothing is lost, people can still be forgotten, and it goes on afterwards."""

import os
import resource
import signal
import subprocess

import pytest

from indknn.errors import StoreError
from indknn.store import Store, filehome, journal
from indknn.store.verify import problems
from store.faults import law
from store.faults.killing import context


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A file system of 32 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root; the size limit test runs everywhere")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    monkeypatch.setattr(filehome.Ballast, "fill", law.REAL_FILL)
    monkeypatch.setattr(filehome, "_SPARE", law.REAL_SPARE)
    monkeypatch.setattr(journal, "FOLD_BYTES", 2 << 20)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(folder):
    """Take every byte that is left."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    return filler


def ask_until_it_fails(store, prefix, limit=2000):
    """Queries until one is refused; the name of that one."""
    for i in range(limit):
        try:
            store.predict(law.rows(f"{prefix}-{i}", 4), request_id=f"{prefix}-{i}")
        except StoreError:
            return f"{prefix}-{i}"
    pytest.fail("the disk never was full")


def test_a_full_disk_answers_nothing_loses_nothing_and_forgets(small_disk):
    path = small_disk / "a.store"
    names = law.new_store(path)
    store = Store(path)
    first = store.predict(law.rows("first", 4), request_id="first")
    filler = fill_up(small_disk)
    refused = ask_until_it_fails(store, "full")
    answers = store.db.execute("SELECT count(*) FROM answers").get
    spent = store.spent(names)
    for _ in range(3):
        store.spent(names)  # the file is read again, which empties the log
        fill_up(small_disk)
        with pytest.raises(StoreError):
            store.predict(law.rows(refused, 4), request_id=refused)
        with pytest.raises(StoreError):
            store.add(law.rows("x", 500), ["a"] * 500, [f"x{i}" for i in range(500)])
    assert store.predict(law.rows("first", 4), request_id="first").tolist() == first.tolist()
    assert store.db.execute("SELECT count(*) FROM answers").get == answers
    assert store.spent(names).tolist() == spent.tolist()

    for name in names[:3]:
        assert store.forget([name])["records"] == 1
        text = b"".join(law.body_of(path.with_name(path.name + end)) for end in law.SIDE_FILES)
        assert name.encode() not in text
        fill_up(small_disk)
    assert store.spent(names).tolist() == spent.tolist()
    assert not list(problems(store))

    filler.unlink()
    assert len(store.predict(law.rows(refused, 4), request_id=refused)) == 4
    assert (store.spent(names) >= spent).all()
    assert not list(problems(store))
    store.close()
    with Store(path) as again:
        assert not list(problems(again))


def test_another_process_opens_on_a_full_disk_and_forgets(small_disk):
    """As the command line does: the lock, the log and the ballast must not need space that is not there."""
    path = small_disk / "a.store"
    names = law.new_store(path)
    with Store(path) as store:
        store.predict(law.rows("q", 4))
        spent = store.spent(names)
    fill_up(small_disk)
    with Store(path) as store:
        assert store.forget(names[:1])["owners_forgotten"] == 1
    with Store(path) as store:
        assert store.spent(names).tolist() == spent.tolist()
        assert names[0] not in store.engine.ledger.owners()
        assert not list(problems(store))


def test_the_ballast_grows_with_the_store_and_holds_what_a_forget_needs(small_disk):
    path = small_disk / "a.store"
    with Store.create(path, law.settings()) as store:
        before = store.home._ballast.size
        store.add(law.rows("x", 3000), ["a"] * 3000, ["one"] * 1500 + [f"x{i}" for i in range(1500)])
        assert store.home._ballast.size > before + 1000 * 4096
        store.predict(law.rows("q", 200))
        fill_up(small_disk)
        assert store.forget(["one"])["records"] == 1500


def limited(pipe, path):
    """In a process whose files may not grow beyond what they are: the same as a full disk, without root."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    law.no_ballast()
    heard = []
    store = Store(path)
    law.ask(store, "before", None, 2, heard.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(f"{path}-wal") + 100, hard))
    try:
        law.ask(store, "limited", None, 2, heard.append)
        pipe.send("answered")
    except StoreError:
        pipe.send("refused")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    law.ask(store, "limited", None, 2, heard.append)
    law.ask(store, "before", None, 2, heard.append)
    pipe.send([m for m in heard if m[0] == "answered"])
    store.close()


def test_a_size_limit_refuses_and_passes(tmp_path):
    path = tmp_path / "a.store"
    heard = law.Law(law.new_store(path))
    here, there = context().Pipe(duplex=False)
    process = context().Process(target=limited, args=(there, str(path)))
    process.start()
    there.close()
    assert here.poll(60)
    assert here.recv() == "refused"
    for message in here.recv():
        heard.hear((*message[:-1], {}))
    process.join(60)
    assert process.exitcode == 0
    with Store(path) as store:
        assert heard.check(store) == law.Findings()
        assert store.db.execute("SELECT count(*) FROM answers").get == 4

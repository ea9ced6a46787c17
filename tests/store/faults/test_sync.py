"""A sync that is killed has changed nothing, or everything. The next one completes it, and nobody's budget comes back."""

import os
import shutil

import numpy as np
import pytest

from indknn.store import Store
from indknn.store.verify import problems
from store.faults import law, points
from store.faults.killing import context

PEOPLE = 40
WITHIN = {
    "adding records": 2,  # those of the second batch
    "adding owners": 1,
    "clearing records": 1,
    "writing a tombstone": 2,  # after the records that are missing, not those that were replaced
    "folding": 1,
    "folded, not committed": 2,
    "in the transaction": 2,
}
AFTER = {"before the log is emptied": 1, "after the log is emptied": 1}


def tables():
    """The table of the first night and of the second: rows changed, came and went, and with some all of a person."""
    names, ids = [f"p{i % PEOPLE}" for i in range(2 * PEOPLE)], [f"v{i}" for i in range(2 * PEOPLE)]
    first = law.rows("first", 2 * PEOPLE), law.labels("first", 2 * PEOPLE), names, ids
    X = first[0].copy()
    X[:9] = law.rows("changed", 9)
    kept = [i for i in range(2 * PEOPLE) if i % PEOPLE < PEOPLE - 5 and i != 20]
    second = (
        np.concatenate([X[kept], law.rows("new", 4)]),
        np.concatenate([first[1][kept], law.labels("new", 4)]),
        [*(names[i] for i in kept), "p0", "ann", "ann", "bob"],
        [*(ids[i] for i in kept), "w0", "w1", "w2", "w3"],
    )
    return first, second


def sync_and_die(path, point, nth):
    """Run the second night in this process, which ends at the point."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    law.no_ballast()
    points.arm(point, nth)
    with Store(path) as store:
        X, y, owners, ids = tables()[1]
        half = len(ids) // 2
        batches = [(X[p], y[p], owners[p], ids[p]) for p in (slice(half), slice(half, None))]
        store.sync_batches(batches, delete_missing=True)


def contents(store):
    """Who is here, with which records, and what everybody who ever was here has spent."""
    shard, ledger = store.engine.shard, store.engine.ledger
    slots = shard.slots()
    values, _ = shard.bodies_at(slots)
    held = sorted(
        (ledger.name_of(owner), int(label), row.tobytes())
        for owner, label, row in zip(shard.owners_of(slots).tolist(), shard.labels_of(slots), values, strict=True)
    )
    return held, store.spent([f"p{i}" for i in range(PEOPLE)]).tolist()


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """A store after the first night, and what it holds then and after a second night that nobody interrupts."""
    law.no_ballast()
    folder = tmp_path_factory.mktemp("nights")
    first, second = tables()
    with Store.create(folder / "a.store", law.settings()) as store:
        store.sync(*first)
        store.predict(law.rows("queries", 30))
        before = contents(store)
    shutil.copytree(folder, folder / "done")
    with Store(folder / "done" / "a.store") as store:
        told = store.sync(*second, delete_missing=True)
        assert (told.added, told.replaced, told.missing) == (4, 9, 11)
        after = contents(store)
    assert before[1] == after[1]
    assert min(before[1]) > 0
    return folder, before, after


@pytest.mark.parametrize(("point", "nth"), [*WITHIN.items(), *AFTER.items()])
def test_killed_in_a_sync(nights, tmp_path, point, nth):
    folder, before, after = nights
    law.copy_all(folder / "a.store", tmp_path / "a.store")
    process = context().Process(target=sync_and_die, args=(str(tmp_path / "a.store"), point, nth))
    process.start()
    process.join()
    assert process.exitcode == -9
    with Store(tmp_path / "a.store") as store:
        assert contents(store) == (before if point in WITHIN else after)
        assert not list(problems(store))
        store.sync(*tables()[1], delete_missing=True)
        assert contents(store) == after
        assert not list(problems(store))

"""A process that dies while it erases what has expired. Nothing comes back, and nothing that was spent is lost."""

import os
import signal

import numpy as np
import pytest

from indknn.core import clock
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.verify import problems
from store.faults import law, points

START = 500_000 * 3600.0
SOON = "2027-01-15T09:00"  # an hour later
POINTS = [p for p in points.POINTS if "records" not in p.replace("clearing records", "") and "owners" not in p]


def at(hours):
    clock.seconds = lambda: START + 3600 * hours


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "seconds", clock.seconds)
    law.no_ballast()
    at(0)
    rng = np.random.default_rng(0)
    with Store.create(tmp_path / "a.store", Settings(4, ("no", "yes"), tau=0.2, mode="votes")) as store:
        names = [f"person {i}" for i in range(30)]
        store.add(rng.normal(size=(30, 4)), ["no", "yes"] * 15, names, expires=[SOON] * 20 + [None] * 10)
        store.predict(rng.normal(size=(5, 4)))
        store.hold("person 3")
    return tmp_path / "a.store"


def erase(path, point):
    """In a process of its own: open the store an hour later, die at this point, or erase everything."""
    child = os.fork()
    if child == 0:
        try:
            at(1)
            store = Store(path, read_only=False)
            points.arm(point, 1)
            store.predict(np.ones((1, 4)))
            while store.expire_piece(4):
                store.compute([])
                store.flush()
            store.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_erasing(path, point, monkeypatch):
    monkeypatch.setattr(Store, "expire_some", lambda self: 0)  # so that pieces are left for `expire_piece`
    with Store(path) as store:
        names = [f"person {i}" for i in range(30)]
        before = store.spent(names)
    status = erase(path, point)
    assert os.WIFSIGNALED(status) is (status != 0)
    assert status in {0, signal.SIGKILL}
    at(1)
    with Store(path) as store:
        assert list(problems(store)) == []
        assert (store.spent(names) >= before).all()
        assert (store.spent(names[:20]) == before[:20]).all()  # none of them took part an hour later
        store.expire()
        assert sorted(store.engine.ledger.owners()) == sorted([*names[20:], "person 3"])
        store.release_hold("person 3")
        assert list(problems(store)) == []
        assert (store.spent(names[:20]) == before[:20]).all()

"""A process that dies while a promise is lowered or a period ends: it is done or it is not, and never half."""

import os
import signal

import numpy as np
import pytest

from indknn.core import clock
from indknn.settings import Settings
from indknn.store import Store, chain, database, journal
from indknn.store.change import Change
from indknn.store.verify import problems

SETTINGS = Settings(3, (0, 1), tau=0.2, sigma2=0.5, renew_days=10, i_understand="epsilon per period")
LOWER = [(journal, "write_promise_blocks"), (chain, "append")]
RENEW = [
    (database, "write_tombstones"),
    (journal.StoreJournal, "_write_balances"),
    (database, "write_sum"),
    (chain, "append"),
    (Change, "renew"),
]
DAY = 86_400.0


def made(path):
    rng = np.random.default_rng(0)
    with Store.create(path, SETTINGS, synchronous="OFF") as store:
        store.add(rng.normal(size=(40, 3)), [0, 1] * 20, [f"p{i}" for i in range(40)])
        store.predict(rng.normal(size=(5, 3)))
        store.forget(["p3"])
        return {scope: store.engine.ledger.column(scope).tolist() for scope in store.engine.ledger.scopes}


def dies(path, where, name, nth, work):
    """Whether the child was killed when it passed the point for the nth time."""
    child = os.fork()
    if child == 0:
        original, left = getattr(where, name), [nth]

        def dying(*arguments, **options):
            result = original(*arguments, **options)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(where, name, dying)
        with Store(path) as store:
            work(store)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(("where", "name"), LOWER, ids=[name for _, name in LOWER])
def test_killed_while_a_promise_is_lowered(tmp_path, where, name):
    path = tmp_path / "a.store"
    made(path)
    assert dies(path, where, name, 1, lambda store: store.lower("p1", 0.25))
    with Store(path) as store:
        assert not list(problems(store))
        assert store.engine.ledger.promises_of(["p1"])["epsilon"].tolist() == [0.0]
        store.lower("p1", 0.25)
    with Store(path) as store:
        assert store.engine.ledger.promises_of(["p1"])["epsilon"].tolist() == [0.25]
        assert not list(problems(store))


@pytest.mark.parametrize(("where", "name"), RENEW, ids=[name for _, name in RENEW])
def test_killed_while_a_period_ends(tmp_path, monkeypatch, where, name):
    path, now = tmp_path / "a.store", [20_000 * DAY]
    monkeypatch.setattr(clock, "seconds", lambda: now[0])
    before = made(path)
    now[0] += 11 * DAY
    assert dies(path, where, name, 1, lambda store: None)  # it is due when the store is opened
    monkeypatch.setattr(Store, "renew_if_due", lambda store: False)
    with Store(path) as store:  # as it was, to the unit
        assert not list(problems(store))
        ledger = store.engine.ledger
        assert ledger.period == 0
        assert {scope: ledger.column(scope).tolist() for scope in ledger.scopes} == before
    monkeypatch.undo()
    monkeypatch.setattr(clock, "seconds", lambda: now[0])
    with Store(path) as store:
        assert store.engine.ledger.period == 1
        assert not list(problems(store))

"""Requests that may be sent again: how long, at what price, and what of them is in the file."""

import numpy as np
import pytest

from indknn.errors import RequestConflictError
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.journal import Upload, today
from indknn.store.verify import problems
from indknn.types import Given

SETTINGS = Settings(
    n_features=3, classes=("a", "b"), tau=0.3, epsilon=4.0, max_queries=100, reuse="none", free_repeats=False
)
X = np.eye(3)


def upload(store, once, owner="ann"):
    with store.reading() as db:
        known = once.numbers(db)
    return known if known is not None else store.upsert(Given(X[:1], ["a"], [owner]), [None], once=once).numbers


@pytest.fixture
def path(tmp_path):
    with Store.create(tmp_path / "a.store", SETTINGS) as store:
        store.add(X, ["a", "b", "a"], ["p", "q", "r"])
    return tmp_path / "a.store"


def answers(store):
    return store.db.execute("SELECT count(*) FROM answers").get


def drop(store, days, day=None):
    with store.changing() as change:
        return change.prune(days, day)


def test_an_id_is_kept_for_so_many_days(path):
    with Store(path) as store:
        store.predict(X[:1], request_id="one")
        assert drop(store, 30) == 0
        assert drop(store, 30, today() + 30) == 0
        store.predict(X[:1], request_id="one")
        assert answers(store) == 1
        assert drop(store, 30, today() + 31) == 1
        assert not store.knows("one")
        store.predict(X[:1], request_id="one")  # a new request now, which people pay for
        assert answers(store) == 2
        assert not list(problems(store))
    with Store(path) as store:
        assert store.knows("one")


def test_an_upload_is_done_once(path):
    with Store(path) as store:
        first = upload(store, Upload("visit", b"ann's row"))
    with Store(path) as store:
        assert upload(store, Upload("visit", b"ann's row")).tolist() == first.tolist()
        assert len(store.engine.shard) == 4
        with pytest.raises(RequestConflictError):
            upload(store, Upload("visit", b"bob's row"), "bob")
        assert drop(store, 30, today() + 31) == 1
        assert upload(store, Upload("visit", b"ann's row")).tolist() != first.tolist()
        assert not list(problems(store))


def test_an_upload_that_changes_nothing_is_remembered_too(path):
    rows, once = Given(X[:1], ["a"], ["ann"], ["v"]), Upload("again", b"x")
    with Store(path) as store:
        before = store.upsert(rows, [None]).numbers
        assert store.upsert(rows, [None], once=once).numbers.tolist() == before.tolist()
        assert not list(problems(store))
    with Store(path) as store:
        assert upload(store, once).tolist() == before.tolist()


def test_a_purge_leaves_uploads_and_a_name_is_nowhere_in_the_file(path):
    once = Upload("visit-of-annabel-lee", b"annabel-lee, row")
    with Store(path) as store:
        first = upload(store, once, "annabel-lee")
        store.purge()
        assert upload(store, once, "annabel-lee").tolist() == first.tolist()
        store.forget(["annabel-lee"])
        assert upload(store, once, "annabel-lee").tolist() == first.tolist()  # sent again, it does not bring her back
        assert store.engine.ledger.n_owners == 3
    assert b"annabel-lee" not in path.read_bytes()

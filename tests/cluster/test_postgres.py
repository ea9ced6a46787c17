"""Shards over a store in PostgreSQL: the same rows, and a coordinator that was replaced answers nobody."""

import pytest

import postgres_server
from cluster.histories import DEFAULT, PAPER, inline
from golden.transcripts import MODES, Replayed, data, fingerprint, history, settings
from indknn.cluster import local_cluster
from indknn.errors import FencedError, StoreError
from indknn.store import Store
from indknn.store.home import home_of
from indknn.store.verify import problems

WHY_NOT = postgres_server.why_not()
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@pytest.fixture(scope="module")
def server():
    running = postgres_server.Server()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("INDKNN_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("mode", [PAPER, DEFAULT])
def test_shards_over_a_database_answer_as_over_a_file(mode, server, tmp_path):
    told = []
    for place in (tmp_path / "people.store", server.new_place()):
        with (
            inline(2) as cluster,
            Store.create(place, settings(MODES[mode]), noise=Replayed(), make_shard=cluster.new_shard) as store,
        ):
            one = history(store, store.forget)
            rows = [tuple(map(str, row)) for row in store.db.execute("SELECT seq, label, charged FROM answers")]
            told.append({**one, "answers": fingerprint(sorted(rows))})
            assert not list(problems(store))
    assert told[0] == told[1]


def test_a_coordinator_that_was_replaced_answers_nobody(server):
    X, y, owners, Q = data()
    people, place = sorted(set(owners)), server.new_place()
    with local_cluster(2) as first, local_cluster(2) as second:
        old = Store.create(place, settings(MODES[PAPER]), make_shard=first.new_shard)
        old.add(X, y, owners)
        told = old.predict(Q[:10], request_id="first").tolist()
        home_of(place).take_over()  # as if the old process were lost
        with Store(place, make_shard=second.new_shard) as new:
            spent = new.spent(people)
            for error in (
                StoreError,
                FencedError,
            ):  # its shards are alive and its memory is as it was: none of it counts
                with pytest.raises(error):
                    old.predict(Q[10:20], request_id="second")
            assert new.spent(people).tolist() == spent.tolist()
            assert not new.knows("second")
            assert new.predict(Q[:10], request_id="first").tolist() == told
            new.predict(Q[10:20], request_id="second")
            assert (new.spent(people) >= spent).all()
            assert not list(problems(new))
        old.close()

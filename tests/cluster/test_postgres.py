"""Shards over a store in PostgreSQL: the same rows, and a coordinator that was replaced answers nobody."""

import os
import signal
import subprocess
import sys
import threading
from itertools import count

import pytest

from cluster.histories import DEFAULT, PAPER, inline
from golden.transcripts import MODES, Replayed, data, fingerprint, history, settings
from helpers import postgres_server
from helpers.asking import declared
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
            one = history(store, store.forget, MODES[mode])
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


PATIENCE = 1.0
"""Seconds that a host may take, and that the database lets a transaction stand still. They are 120 and 60 otherwise."""
COORDINATOR = """
import sys
from golden.transcripts import data
from indknn.cluster import local_cluster
from indknn.errors import FencedError, StoreError
from indknn.store import Store
from indknn.store.postgres import home
place, patience, i, Q = sys.argv[1], float(sys.argv[2]), 0, data()[3]
home.IDLE_SECONDS = patience
with local_cluster(2) as cluster, Store(place, make_shard=cluster.new_shard) as store:
    for link in cluster._links:
        link._patience = patience  # once they have started, which may take long
    while True:
        try:
            labels = store.predict(Q[i % 190 : i % 190 + 3], f"analyst {i // 190}", request_id=str(i))
        except FencedError:
            sys.exit(3)
        except StoreError:
            continue  # it is unknown whether that was written: ask again with the same request id
        print(i, *labels, flush=True)
        i += 1
"""


class Coordinator:
    """A process that asks a store for one answer after the other, and what it has told."""

    def __init__(self, place):
        path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", COORDINATOR, place, str(PATIENCE)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.heard = []
        self.hearing = threading.Thread(target=self._hear)
        self.hearing.start()

    def _hear(self):
        for line in self.process.stdout:
            number, *labels = line.split()
            self.heard.append((int(number), labels))

    def more(self, n):
        """Wait for this many further answers."""
        target = len(self.heard) + n
        while len(self.heard) < target:
            assert self.process.poll() is None
            threading.Event().wait(0.01)

    def stand_still(self):
        """Stop it for longer than anybody is patient."""
        self.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(2 * PATIENCE)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


def test_a_coordinator_that_stood_still_goes_on_unless_it_was_replaced(server):
    X, y, owners, Q = data()
    place = server.new_place()
    with Store.create(place, settings(MODES[PAPER])) as store:
        store.add(X, y, owners)
        declared(store, "somebody", *(f"analyst {i}" for i in range(20)))
    old = Coordinator(place)
    try:
        old.more(3)
        for _ in range(5):
            old.stand_still()
            old.go_on()
            old.more(3)
        old.stand_still()
        home_of(place).take_over()
        with Store(place) as new:
            known = next(i for i in count() if not new.knows(str(i)))
            new.predict(Q[:5], "somebody")
            old.go_on()
            assert old.process.wait() == 3
            old.hearing.join()
            assert len(old.heard) <= known  # nothing left that its successor has not read
            answers = new.db.execute("SELECT count(*) FROM answers").get
            for i, labels in old.heard:
                again = new.predict(Q[i % 190 : i % 190 + 3], f"analyst {i // 190}", request_id=str(i))
                assert again.tolist() == labels
            assert new.db.execute("SELECT count(*) FROM answers").get == answers
            assert not list(problems(new))
    finally:
        old.process.kill()
        old.process.wait()
        old.hearing.join()
        old.process.stdout.close()

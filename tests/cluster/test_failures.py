"""Shards that die, hang or have another coordinator; coordinators that die. Nobody is answered who did not pay."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cluster.histories import DEFAULT, PAPER, inline
from golden.transcripts import MODES, Replayed, data, settings
from helpers.asking import declared
from indknn.cluster import Cluster, local_cluster
from indknn.cluster.links import Inline, Process
from indknn.engine import Engine
from indknn.errors import LedgerError, ShardError
from indknn.ledger import MemoryLedger
from indknn.store import Store
from indknn.store.verify import problems


def filled(path, mode, cluster):
    X, y, owners, Q = data()
    # The same noise each time: with other noise, a model may be so sure that it asks no shard.
    store = Store.create(path, settings(MODES[mode]), make_shard=cluster.new_shard, noise=Replayed())
    declared(store, *(f"analyst {i}" for i in range(6))).add(X, y, owners)
    return store, Q, sorted(set(owners))


def hosts_agree(engine, hosts):
    """What hosts think that people have spent is what the books say."""
    for k, host in enumerate(hosts):
        for scope in engine.ledger.scopes:
            books = engine.ledger.column(scope)[k :: len(hosts)]
            held = host._ledger._spent.get(scope, np.zeros(len(books), dtype=np.int64))
            if held[: len(books)].tolist() != books.tolist():
                return False
    return True


def processes(cluster):
    return [link.pid for link in cluster._links]


@pytest.mark.parametrize("mode", [PAPER, DEFAULT])
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_shard_that_dies_or_hangs_is_replaced_and_nothing_is_lost(mode, sign, tmp_path):
    with local_cluster(2) as cluster:
        store, Q, people = filled(tmp_path / "people.store", mode, cluster)
        with store:
            told = store.predict(Q[:20], request_id="first").tolist()
            spent = store.spent(people)
            before = processes(cluster)
            cluster._links[1]._patience = 1.0  # nobody else must be quick
            os.kill(before[1], sign)
            with pytest.raises(ShardError, match="shard 1"):
                store.predict(Q[20:40], request_id="second")
            assert store.spent(people).tolist() == spent.tolist()  # read back: nothing left, nobody paid
            after = store.predict(Q[20:40], request_id="second").tolist()
            assert processes(cluster)[1] != before[1]
            assert store.predict(Q[:20], request_id="first").tolist() == told
            assert store.predict(Q[20:40], request_id="second").tolist() == after
            assert (store.spent(people) >= spent).all()
            assert not list(problems(store))


def test_all_shards_die_while_records_are_added(tmp_path):
    X, y, _, _ = data()
    with local_cluster(2) as cluster:
        store, Q, _people = filled(tmp_path / "people.store", PAPER, cluster)
        with store:
            held = len(store.engine.shard)
            for pid in processes(cluster):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(ShardError):
                store.add(X[:4], y[:4], ["new"] * 4)
            assert len(store.engine.shard) == held
            store.add(X[:4], y[:4], ["new"] * 4)
            assert len(store.engine.shard) == held + 4
            store.predict(Q[:5])
            assert not list(problems(store))


def test_a_shard_that_is_found_dead_before_an_addition_begins_is_replaced(tmp_path):
    """Records are compared with those that are here before anything is written."""
    X, y, owners, _ = data()
    with local_cluster(2) as cluster:
        store, Q, _ = filled(tmp_path / "people.store", PAPER, cluster)
        with store:
            os.kill(cluster._links[1].pid, signal.SIGKILL)
            with pytest.raises(ShardError, match="shard 1 is gone"):
                store.add(X[:50] + 1.0, y[:50], owners[:50])
            store.add(X[:50] + 1.0, y[:50], owners[:50])
            store.predict(Q[:3])
            assert not list(problems(store))


def test_in_memory_a_lost_shard_is_refused_until_everything_is_fitted_anew():
    X, y, owners, Q = data()
    people = sorted(set(owners))
    with local_cluster(2) as cluster:
        engine = Engine(settings(MODES[PAPER]), Replayed(), make_shard=cluster.new_shard)
        engine.add(X, y, owners)
        engine.predict(Q[:20])
        spent = engine.spent(people)
        os.kill(processes(cluster)[0], signal.SIGKILL)
        with pytest.raises(ShardError):
            engine.predict(Q[20:30])
        with pytest.raises(LedgerError, match="a shard was lost"):
            engine.predict(Q[20:30])
        engine = engine.restarted(engine.settings, engine.noise)
        engine.add(X, y, owners)
        assert engine.spent(people).tolist() == spent.tolist()
        engine.predict(Q[20:30])
        assert (engine.spent(people) >= spent).all()
        assert engine.spent(people).sum() > spent.sum()


class Failing(Replayed):
    """Noise that fails at one draw."""

    left = 1 << 60

    def draw(self, scale, size):
        self.left -= 1
        if not self.left:
            raise OSError("no entropy")
        return super().draw(scale, size)


@pytest.mark.parametrize("mode", [PAPER, DEFAULT])
def test_what_a_batch_cost_that_was_cut_short_is_not_given_back(mode):
    X, y, owners, Q = data()
    cluster = inline(3)
    engine = Engine(settings(MODES[mode]), Failing(), make_shard=cluster.new_shard)
    engine.add(X, y, owners)
    engine.predict(Q[:20])
    hosts = [link._host for link in cluster._links]
    assert hosts_agree(engine, hosts)
    engine.noise.left = 8
    before = engine.spent()
    with pytest.raises(OSError, match="no entropy"):
        engine.predict(Q[100:150])
    paid = sum(int(host._ledger._spent[None].sum()) for host in hosts)
    assert hosts_agree(engine, hosts) == (mode == PAPER)  # counts are charged when they come, votes when they are used
    engine.predict(Q[:0])
    engine.add(X[:1], y[:1], ["p5"])
    assert hosts_agree(engine, hosts)
    assert engine.ledger.column(None).sum() == paid
    assert (engine.spent() >= before).all()
    engine.predict(Q[150:160])
    assert hosts_agree(engine, hosts)
    engine.forget_owners(["p5", "p9"])
    engine.add(X[:2], y[:2], ["p9", "p5"])
    engine.predict(Q[160:180])
    assert hosts_agree(engine, hosts)


def test_a_count_is_charged_although_a_host_dies_before_the_votes(monkeypatch):
    """The noisy count shapes later answers, so it is paid for before it is used."""
    X, y, owners, Q = data()
    people, seen, cluster = sorted(set(owners)), [], inline(2)
    engine = Engine(settings(MODES[PAPER]), Replayed(), make_shard=cluster.new_shard)
    engine.add(X, y, owners)
    engine.predict(Q[:5])
    before = engine.spent(people)

    def died(host, *_):
        seen.append(int(host._ledger._spent[None].sum()))
        raise ShardError("shard 0 is gone")

    with monkeypatch.context() as patched:
        patched.setattr("indknn.cluster.host.Host.settle", died)
        with pytest.raises(ShardError, match="gone"):
            engine.predict(Q[5:25])
    paid = engine.spent(people)
    assert (paid >= before).all()
    assert paid.sum() > before.sum()
    assert engine.ledger.column(None).sum() == sum(seen)
    engine = engine.restarted(engine.settings, engine.noise)
    engine.add(X, y, owners)
    assert engine.spent(people).tolist() == paid.tolist()
    engine.predict(Q[5:25])
    assert hosts_agree(engine, [link._host for link in cluster._links])


def test_an_answer_that_came_while_this_process_stood_still_is_heard(monkeypatch):
    class Late:
        """Nothing comes before the process is stopped, and the answer is there when it goes on."""

        heard = iter([False, True, True])

        def poll(self, timeout):
            return next(self.heard)

        def recv(self):
            return 1, "answer", None

    link = object.__new__(Process)
    link._number, link._patience, link._sent, link._connection = 0, 120.0, 1, Late()
    monkeypatch.setattr("indknn.cluster.links.monotonic", iter([0.0, 500.0]).__next__)
    assert link.receive() == "answer"


def test_who_was_replaced_is_refused():
    X, y, owners, Q = data()
    cluster = inline(2)
    old = Engine(settings(MODES[DEFAULT]), Replayed(), make_shard=cluster.new_shard)
    old.add(X, y, owners)
    new = Engine(settings(MODES[DEFAULT]), Replayed(), make_shard=cluster.new_shard)
    new.add(X, y, owners)
    spent = old.spent(sorted(set(owners))).tolist()
    with pytest.raises(ShardError, match="started again"):
        old.predict(Q[:5])
    assert old.spent(sorted(set(owners))).tolist() == spent


def test_hosts_know_no_names():
    X, y, owners, Q = data()
    cluster = inline(2)
    engine = Engine(settings(MODES[DEFAULT]), Replayed(), make_shard=cluster.new_shard)
    engine.add(X, y, [f"somebody called {name}" for name in owners])
    engine.predict(Q[:5], "ann")
    for link in cluster._links:
        assert b"somebody called" not in pickle.dumps(link._host.__dict__)


def alive(pid):
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


COORDINATOR = """
import sys
from cluster.test_failures import PAPER, data, filled, local_cluster, processes
with local_cluster(2) as cluster:
    store, Q, people = filled(sys.argv[1], PAPER, cluster)
    print(*processes(cluster), flush=True)
    for i in range(1000):
        labels = store.predict(Q[i % 190 : i % 190 + 5], f"analyst {i // 190}", request_id=str(i))
        print(i, *labels, flush=True)
"""


@pytest.mark.parametrize("after", [1, 7])
def test_a_coordinator_that_dies_leaves_no_hosts_and_no_answer_that_nobody_paid_for(after, tmp_path):
    path = tmp_path / "people.store"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, path], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        hosts = [int(pid) for pid in run.stdout.readline().split()]
        heard = [run.stdout.readline().split() for _ in range(after)]
        run.kill()
        heard += [line.split() for line in run.stdout if line.endswith("\n")]
    for pid in hosts:
        while alive(pid):
            time.sleep(0.05)  # they end as soon as they see that the coordinator is gone
    _, _, _, Q = data()
    with local_cluster(3) as cluster, Store(path, make_shard=cluster.new_shard) as store:
        assert not list(problems(store))
        spent = store.spent()
        for number, *labels in heard:
            i = int(number)
            again = store.predict(Q[i % 190 : i % 190 + 5], f"analyst {i // 190}", request_id=number)
            assert again.tolist() == labels
        assert store.spent().tolist() == spent.tolist()


def test_an_interrupt_while_hosts_are_asked_ends_them_and_a_store_goes_on(tmp_path, monkeypatch):
    with local_cluster(2) as cluster:
        store, Q, people = filled(tmp_path / "people.store", PAPER, cluster)
        with store:
            told = store.predict(Q[:10], request_id="first").tolist()
            spent, before = store.spent(people).tolist(), processes(cluster)
            with monkeypatch.context() as patched:
                patched.setattr(cluster._links[1], "receive", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    store.predict(Q[10:20])
            assert store.spent(people).tolist() == spent
            store.predict(Q[10:20])
            assert processes(cluster)[0] == before[0]  # whose answer was heard
            assert processes(cluster)[1] != before[1]
            assert store.predict(Q[:10], request_id="first").tolist() == told


def interrupted():
    raise KeyboardInterrupt


class Stillborn:
    """A host that can be started, and does not begin."""

    def __init__(self, number):
        self.number = number

    def send(self, name, *arguments):
        pass

    def receive(self):
        raise ShardError(f"shard {self.number} did not start")

    def close(self):
        pass


def test_a_new_host_that_does_not_begin_is_not_awaited_twice():
    """Nobody is answered meanwhile. One that was there before is replaced."""
    started = []

    def connect(number):
        started.append(number)
        return Stillborn(number) if number == 1 else Inline(number)

    with Cluster(connect, 2) as cluster, pytest.raises(ShardError, match="shard 1 did not start"):
        cluster.new_shard(settings(MODES[PAPER]), MemoryLedger(0)).expect(1)
    assert started == [0, 1]
    started.clear()
    with Cluster(lambda number: started.append(number) or Inline(number), 2) as cluster:
        cluster._links[1] = Stillborn(1)
        cluster.new_shard(settings(MODES[PAPER]), MemoryLedger(0)).expect(1)
    assert started == [0, 1]

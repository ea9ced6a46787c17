"""Faults of links, nodes, shards and coordinators under load, and the law about what clients were told meanwhile."""

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import httpx

from cluster.hosts.bed import until
from server.killing import ANALYSTS, Findings, Told

SCHEMA = "people"
OPTIONS = "&tcp_user_timeout=4000"  # a lost database is noticed soon
SETTINGS = {"epsilon": 8.0, "max_queries": 1_000_000}
PATIENCE = 6.0
"""Seconds that a client waits before it asks again with the same id."""
PEOPLE = [f"p{i}" for i in range(300)]


@dataclass
class MoreFindings(Findings):
    """Also: balances that fell, and answers of a coordinator that was replaced. `stuck` is no breach of the law."""

    refunds: int = 0
    two_coordinators: int = 0


class Campaign(Told):
    """Clients that never rest, and one fault after the other."""

    def __init__(self, bed, seed=0, **settings):
        super().__init__(seed, endless="mode" in settings)
        self.found, self.bed, self.net = MoreFindings(), bed, bed.network
        self.keys = bed.make_store(SCHEMA, OPTIONS, **{**SETTINGS, **settings})
        self.active, self.replaced = "first", {}  # replaced: when another took over from it
        self.faults, self.statuses, self.stuck, self.checks = Counter(), Counter(), 0, 0
        self._spent, self._stop, self._number = {}, threading.Event(), 0

    def __enter__(self):
        self.serve()
        self._threads = [threading.Thread(target=self._use, args=(analyst,)) for analyst in ANALYSTS]
        self._threads.append(threading.Thread(target=self._change))
        for thread in self._threads:
            thread.start()
        assert self.answered(4), "nothing was answered before the first fault"
        return self

    def __exit__(self, *_):
        self._stop.set()
        self.net.heal()
        for thread in self._threads:
            thread.join()

    def serve(self):
        """Start the service where it should be."""
        self.bed.serve(self.active, SCHEMA, OPTIONS)

    # Load

    def _use(self, analyst):
        """Ask without end. What is not answered is asked again with the same id, wherever the service is then."""
        rng, clients, again = random.Random(analyst), {}, []
        with self.net.inside("people"):
            while not self._stop.is_set():
                mine = [name for who, name in list(self.open_questions) if who == analyst]
                again = again or mine or (self._some(analyst) if rng.random() < 0.1 else [])
                name = again.pop() if again else f"{rng.getrandbits(60):x}"
                for host in [self.active, *self.replaced]:
                    http = clients.get(host) or self.bed.client(host, self.keys[analyst], timeout=PATIENCE)
                    clients[host] = http
                    if not self._ask_one(http, host, analyst, name):
                        clients.pop(host).close()
                time.sleep(0.01)
        for http in clients.values():
            http.close()

    def _ask_one(self, http, host, analyst, name):
        since = time.monotonic()
        try:
            status = self.ask(http, analyst, name)
        except httpx.HTTPError as error:
            self.statuses[type(error).__name__] += 1
            time.sleep(0.1)
            return False
        self.statuses[status] += 1
        if status == 200:
            self.found.two_coordinators += since > self.replaced.get(host, float("inf"))
        elif status not in {503, 401}:
            self.found.server_errors += 1
        else:
            time.sleep(0.1)
        return True

    def _some(self, analyst):
        names = [name for who, name in list(self.told)[-50:] if who == analyst]
        return names[-2:]

    def _change(self):
        """Add and forget people without end."""
        http = None
        with self.net.inside("people"):
            while not self._stop.wait(0.2):
                self._number += 1
                record = {"features": [1.0, self._number, 0, 1], "label": "a", "owner": f"n{self._number}"}
                http = http or self.bed.client(self.active, self.keys["curator"], timeout=PATIENCE)
                try:
                    http.post("/v1/records", json={"records": [record]})
                    http.delete(f"/v1/owners/n{self._number - 5}")
                except httpx.HTTPError:
                    http.close()
                    http = None
        if http is not None:
            http.close()

    # The law

    def answered(self, n):
        """Wait for this many further answers. Returns whether they came. What ends meanwhile is started again."""
        target = len(self.told) + n

        def enough():
            self.bed.serve_again(self.active, SCHEMA, OPTIONS)
            return len(self.told) >= target

        return until(enough, pause=0.02)

    def look(self):
        """The law, against the tables as they are at this moment. Clients go on."""
        told = dict(self.told)  # all of it was told before the store is read
        with self.bed.look(SCHEMA) as store:
            self.check(store, told)
            for analyst in ANALYSTS:
                spent = store.spent(PEOPLE, analyst)
                before = self._spent.setdefault(analyst, spent)
                self.found.refunds += int((spent < before).sum())
                self._spent[analyst] = spent
        self.checks += 1

    # Faults

    def fault(self, name):
        """One fault, and what an operator does after it. Then somebody must be answered again."""
        self.faults[name] += 1
        FAULTS[name][0](self)
        self.net.heal()
        if not self.answered(2):
            self.stuck += 1
            self._restart_everything()

    def any_fault(self):
        """A fault at random, the quick ones more often."""
        names = list(FAULTS)
        self.fault(self.rng.choices(names, [FAULTS[name][1] for name in names])[0])

    def pause(self, least=0.2, most=2.5):
        time.sleep(self.rng.uniform(least, most))

    def shard_host(self):
        return self.rng.choice(["head", "node"])

    def cut_shard(self):
        self.net.link(self.shard_host(), cut=True)
        self.pause()

    def cut_database(self):
        self.net.link(self.active, "db", cut=True)
        self.pause()

    def cut_clients(self):
        self.net.link("people", cut=True)
        self.pause(0.2, 1.0)

    def cut_coordinator(self):
        self.net.link(self.active, cut=True)
        self.pause()

    def slow(self, delay):
        far = self.rng.choice(["db", "head", "node", "people"])
        self.net.link(self.active, far, delay=delay)
        self.pause(0.5, 2.0)

    def lossy(self):
        far = self.rng.choice(["db", "head", "node", "people"])
        self.net.link(self.active, far, loss=0.05)
        self.pause(0.5, 2.0)

    def kill_shard(self):
        self.bed.kill_shards(self.shard_host())

    def stop_shard(self):
        stopped = self.bed.kill_shards(self.shard_host(), signal.SIGSTOP)
        self.pause(0.5, 2.0)
        for number in stopped:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)

    def kill_service(self):
        self.bed.end_service(self.active, signal.SIGKILL)
        self.serve()

    def restart_node(self):
        self.bed.stop_node("node")
        self.bed.start_node("node")

    def lose_node(self):
        """Cut off a node until Ray has given it up. It comes back with its old records, is ended, and started again."""
        self.net.link("node", cut=True)
        until(lambda: self._says("marked dead") or self.bed.services[self.active].poll() is not None)
        self.net.link("node")
        self.pause()
        self.bed.stop_node("node")
        self.bed.start_node("node")

    def restart_all(self):
        """Restart one node after the other. Those that belonged to the old head join the new one."""
        for host in list(self.bed.nodes):
            if host not in {"head", "node", self.active}:
                self.bed.stop_node(host)  # it is started when it is needed
        for host in ("head", "node", self.active):
            self.bed.stop_node(host)
            self.bed.start_node(host)

    def _says(self, words):
        return any(words in line for line in self.bed.services[self.active].said)

    def replace_coordinator(self):
        """Cut the coordinator off its database, let the other take over, and heal. The old one must end by itself."""
        old, new = self.active, {"first": "second", "second": "first"}[self.active]
        self.net.link(old, "db", cut=True)
        self.pause()
        if new not in self.bed.nodes:
            self.bed.start_node(new)
        self.bed.takeover(new, SCHEMA, OPTIONS)
        self.replaced[old] = time.monotonic()
        self.active = new
        self.serve()
        self.answered(2)
        self.net.heal()
        if not until(lambda: self.bed.services[old].poll() is not None):
            self.stuck += 1
        self.bed.end_service(old, signal.SIGKILL)
        self.pause(0.1, 0.3)
        del self.replaced[old]

    def _restart_everything(self):
        for host in list(self.bed.services):
            self.bed.end_service(host, signal.SIGKILL)
        for host in ("node", "head", "first", "second"):
            if host in self.bed.nodes:
                self.bed.stop_node(host)
        for host in ("head", "node", self.active):
            self.bed.start_node(host)
        self.serve()
        assert self.answered(1), "not even new processes answer"


FAULTS = {
    "shard cut off for up to 2.5 s": (Campaign.cut_shard, 14),
    "database cut off for up to 2.5 s": (Campaign.cut_database, 14),
    "clients cut off for up to 1 s": (Campaign.cut_clients, 12),
    "coordinator cut off from everybody": (Campaign.cut_coordinator, 10),
    "50 ms more each way": (lambda campaign: campaign.slow(0.05), 10),
    "200 ms more each way": (lambda campaign: campaign.slow(0.2), 10),
    "5% of packets lost": (Campaign.lossy, 14),
    "shard killed": (Campaign.kill_shard, 6),
    "shard stopped for up to 2 s": (Campaign.stop_shard, 6),
    "coordinator killed": (Campaign.kill_service, 1),
    "node restarted": (Campaign.restart_node, 1),
    "node lost for good, and back with old records": (Campaign.lose_node, 1),
    "all nodes restarted, one after the other": (Campaign.restart_all, 0.5),
    "coordinator replaced behind a partition": (Campaign.replace_coordinator, 1),
}
"""By name: what happens, and how often in comparison."""

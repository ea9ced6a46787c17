"""The cost model of a cluster: one query, one addition, one erasure, one training step, over n, d, shards and the way.

`scaling.py` measures the unit costs, and compares what this says with a real cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from indknn.store.journal import BLOCK

BATCH, DEBIT = 16, 12
NEAR = 31_500
"""People near a query in a very large store, with Algorithm 3. In the default mode there are half as many."""


@dataclass(frozen=True)
class Costs:
    """Seconds, unless it says otherwise. A host's are those of one core."""

    host_query: float  # a host, for every query
    host_record: float  # for a record and a query in a batch of 16, whatever d is
    host_feature: float  # for a feature of a record and a query
    host_near: float  # for everybody near a query: admit, clip, charge
    here_query: float  # the coordinator, for every query
    here_near: float
    write: float  # a transaction of answers in PostgreSQL, without the way there
    write_query: float
    write_near: float
    trips_write: float  # round trips of such a transaction
    trip_write: float  # one of them, without the way there
    trip: float  # a call to all hosts and back, for each of them, without the way there
    byte: float  # a byte on the way, through the switch of the test bed
    window: float  # bytes that TCP sends before it waits for the way there and back
    add_record: float  # all of it, for a record of 64 features: the coordinator, a host and the database
    add: float
    forget: float
    forget_block: float  # for every block of 4096 balances that is written anew
    step_here: float  # a training step: the coordinator, for everybody who pays
    step_record: float  # a host, for a record of 64 features
    open_record: float
    sent_query: float  # bytes to each host for a query, besides its features
    sent_step: float  # bytes to each host and back for a training step
    wal_query: float  # bytes of PostgreSQL's log
    wal_near: float
    wal_record: float  # for a record that is added, besides its features
    wal_forget: float
    rows_query: float


@dataclass(frozen=True)
class World:
    """A cluster: its records, and what lies between its machines."""

    n: float
    d: int
    shards: int
    near: float
    way: float = 0.0005  # seconds there and back, to a host or to the database
    byte: float = 1e-9  # seconds for a byte on the way: 10 Gbit/s, less what protocols take
    cores: float = math.inf  # that all hosts share; else each has one

    @property
    def turns(self) -> float:
        """How often hosts must wait for each other."""
        return max(1.0, self.shards / self.cores)


def ways(c: Costs, size: float) -> float:
    """How often a message of so many bytes waits for the way there and back, on a connection that has been in use."""
    return 1.0 + size / c.window


def query(c: Costs, w: World, batch: int = BATCH, trips: int = 2) -> dict[str, float]:
    """Seconds of each part of a batch, and bytes over the wire: Algorithm 3, or with one trip the default mode."""
    host = c.host_query + (c.host_record + c.host_feature * w.d) * w.n / w.shards + c.host_near * w.near / w.shards
    back = batch * DEBIT * w.near
    sent, stored = batch * w.shards * (c.sent_query + w.d) + trips * back, batch * c.wal_near * w.near
    return {
        "hosts": batch * host * w.turns,
        "coordinator": batch * (c.here_query + c.here_near * w.near),
        "network": trips * (w.shards * c.trip + w.way * ways(c, back / w.shards)) + sent * w.byte,
        "database": c.trips_write * c.trip_write
        + (c.trips_write - 1 + ways(c, stored)) * w.way
        + stored * w.byte
        + c.write
        + batch * (c.write_query + c.write_near * w.near),
        "bytes": sent,
    }


def seconds(parts: dict[str, float]) -> float:
    """All parts, one after the other."""
    return sum(value for name, value in parts.items() if name != "bytes")


def add(c: Costs, w: World, records: int) -> dict[str, float]:
    """Seconds and bytes of an addition."""
    pieces = math.ceil(records / w.shards / (1 << 14))
    took = c.add + pieces * w.way + 8 * w.way + records * c.add_record * (w.d + 64) / 128
    return {"seconds": took, "bytes": records * (w.d + 28.0)}


def blocks_touched(w: World, queries: float) -> float:
    """How many blocks of balances so many queries have changed: their neighbours are anywhere."""
    blocks = max(w.n / BLOCK, 1.0)
    return float(blocks * -math.expm1(-queries * min(w.near, w.n) / blocks))


def forget(c: Costs, w: World, queries_since: float) -> dict[str, float]:
    """Seconds of an erasure, and bytes of log: balances that changed since the last one are written."""
    blocks = blocks_touched(w, queries_since)
    took = c.forget + 10 * w.way + blocks * c.forget_block
    return {"seconds": took, "wal": c.wal_forget + blocks * BLOCK * DEBIT}


def step(c: Costs, w: World) -> dict[str, float]:
    """Seconds and bytes of a training step, in which everybody may pay."""
    sent = w.shards * c.sent_step + DEBIT * w.n
    hosts = c.step_record * (w.d / 64) * w.n / w.shards * w.turns
    network = w.way * ways(c, sent / w.shards) + sent * w.byte
    return {"hosts": hosts, "coordinator": c.step_here * w.n, "network": network, "bytes": sent}


def wal_of_query(c: Costs, w: World, fold_bytes: float, debit: float = DEBIT) -> float:
    """Bytes of log for a query: its answer and debits, and its share of the balances that replace debits in the end."""
    per_fold = max(fold_bytes / (debit * w.near), 1.0)
    balances = blocks_touched(w, per_fold) * BLOCK * DEBIT
    return c.wal_query + w.d + c.wal_near * debit / DEBIT * w.near + balances / per_fold

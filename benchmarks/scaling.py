"""What a query, an addition, an erasure and a training step cost over n, d, shards and round trips: measured, modelled,
compared with a cluster of hosts, and extended to a billion records.

python benchmarks/scaling.py                    all of it, in a few minutes: writes docs/scaling.md's tables and plots
python benchmarks/scaling.py --busy             the same, and says in the page that the machine was not idle
python benchmarks/scaling.py --no-bed           without the network namespaces, which need root
python benchmarks/scaling.py --from FILE        tables and plots again, from what was measured before
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from cost import BATCH, DEBIT, NEAR, Costs, World, add, forget, query, seconds, step, wal_of_query
from indknn.cluster import Cluster
from indknn.cluster.links import Inline
from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.records.indexes.scan import cores
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.journal import BLOCK
from measure import machine

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # for the test bed, and a PostgreSQL of its own
# `cluster.py` beside this file would hide the folder of that name.
sys.path = [path for path in sys.path if Path(path).resolve() != ROOT / "benchmarks"]
CLASSES = 10
PAPER = {"mode": "votes", "reuse": "none", "max_queries": 1_000_000}
DEFAULT = {"mode": "model", "max_queries": 1_000_000}
FILE = ROOT / "docs" / "results" / "scaling.json"
PAGE, IMAGES = ROOT / "docs" / "scaling.md", ROOT / "docs" / "img"


# Measuring


class Meter(Inline):
    """A host in this process that notes how long it works, and how much would travel."""

    seconds, bytes, calls, weighing = 0.0, Counter[str](), Counter[str](), False

    def send(self, name: str, *arguments: Any) -> None:
        """Call at once, and note."""
        kind = arguments[1] if name == "call" else name
        if Meter.weighing:
            Meter.bytes[f"{kind} there"] += len(pickle.dumps(arguments, 5))
        start = time.perf_counter()
        super().send(name, *arguments)
        Meter.seconds += time.perf_counter() - start
        Meter.calls[kind] += 1
        if Meter.weighing:
            Meter.bytes[f"{kind} back"] += len(pickle.dumps(self._given, 5))


def tau_of(share: float, d: int) -> float:
    """The threshold that this share of random directions passes."""
    return float(norm.isf(share) / math.sqrt(d))


def settings(d: int, share: float, mode: dict[str, Any]) -> Settings:
    return Settings(n_features=d, classes=tuple(range(CLASSES)), epsilon=8.0, **{"tau": tau_of(share, d), **mode})


def filled(model: Any, n: int, d: int) -> Any:
    rng = np.random.default_rng(0)
    for first in range(0, n, 50_000):
        X = rng.standard_normal((min(50_000, n - first), d), dtype=np.float32)
        model.add(X, rng.integers(CLASSES, size=len(X)), [str(first + i) for i in range(len(X))])
    return model


def fastest(call: Callable[[], object], rounds: int = 7) -> float:
    """The shortest of some turns: what an undisturbed one takes."""
    found = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found[1:])


def fitted(rows: list[list[float]], values: list[float]) -> list[float]:
    """Costs that are not negative and explain these values, each as well as the others in relation to its size."""
    from scipy.optimize import nnls

    A, b = np.array(rows), np.array(values)
    scale = np.abs(A).max(axis=0)
    found, _ = nnls(A / scale / b[:, None], np.ones(len(b)))
    return [float(value) for value in found / scale]


def measured_queries() -> dict[str, float]:
    rows, hosts, here = [], [], []
    rng = np.random.default_rng(1)
    for d in (64, 384):
        for n in (50_000, 150_000):
            for share in (0.005, 0.03):
                engine = Engine(settings(d, share, PAPER), SecureNoise(), make_shard=Cluster(Meter, 1, 1).new_shard)
                filled(engine, n, d)

                def ask(engine: Engine = engine, d: int = d) -> tuple[float, float]:
                    Meter.seconds, start = 0.0, time.perf_counter()
                    engine.predict(rng.standard_normal((BATCH, d)))
                    return Meter.seconds, time.perf_counter() - start - Meter.seconds

                took = [ask() for _ in range(8)][1:]
                rows.append([1.0, n, n * d, n * share])
                hosts.append(min(host for host, _ in took) / BATCH)
                here.append(min(rest for _, rest in took) / BATCH)
    found = dict(zip(["host_query", "host_record", "host_feature", "host_near"], fitted(rows, hosts), strict=True))
    found |= zip(["here_query", "here_near"], fitted([[row[0], row[3]] for row in rows], here), strict=True)
    with weighing():
        engine.predict(rng.standard_normal((BATCH, d)))
    there = sum(size for name, size in Meter.bytes.items() if name.endswith("there"))
    return {**found, "sent_query": there / BATCH - d}


@contextmanager
def weighing() -> Iterator[None]:
    Meter.bytes.clear()
    Meter.weighing = True
    try:
        yield
    finally:
        Meter.weighing = False


def measured_steps() -> dict[str, float]:
    rows, hosts, here = [], [], []
    for n in (20_000, 80_000):
        engine = Engine(settings(64, 0.01, DEFAULT), SecureNoise(), make_shard=Cluster(Meter, 1, 1).new_shard)
        filled(engine, n, 64)
        Meter.calls.clear()
        with weighing():
            spent, start = 0.0, time.perf_counter()
            Meter.seconds = 0.0
            for _ in engine.train():
                pass
            spent, total = Meter.seconds, time.perf_counter() - start
        steps = Meter.calls["add_up"]
        rows.append([float(n)])
        hosts.append(spent / steps)
        here.append((total - spent) / steps)
    there = Meter.bytes["add_up there"] / steps
    fixed = there + Meter.bytes["add_up back"] / steps - DEBIT * n
    found = {"step_record": fitted(rows, hosts)[0], "step_here": fitted(rows, here)[0]}
    return {**found, "sent_step": max(fixed, there)}


def measured_database() -> dict[str, float]:
    """A store in PostgreSQL on this machine, beside the same in memory: what writing adds."""
    import psycopg

    from helpers import postgres_server

    server = postgres_server.Server("checkpoint_timeout = 1h\nmax_wal_size = 4GB")
    found: dict[str, float] = {}
    try:
        with psycopg.connect(server.conninfo(), autocommit=True) as pg:

            def log() -> int:
                return int(pg.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()[0])  # type: ignore[index]

            found |= _writing(server, log)
            found |= _changing(server, log)
    finally:
        server.close()
    return found


def _writing(server: Any, log: Callable[[], int]) -> dict[str, float]:
    rng, rows, took, logged = np.random.default_rng(2), [], [], []
    n, d = 40_000, 64
    for share in (0.002, 0.05):
        engine = filled(
            Engine(settings(d, share, PAPER), SecureNoise(), make_shard=Cluster(Inline, 1, 1).new_shard), n, d
        )
        with Store.create(
            server.new_place(), settings(d, share, PAPER), make_shard=Cluster(Inline, 1, 1).new_shard
        ) as s:
            filled(s, n, d)
            for batch in (1, BATCH):
                ask = {
                    "store": lambda s=s, batch=batch: s.predict(rng.standard_normal((batch, d))),
                    "engine": lambda engine=engine, batch=batch: engine.predict(rng.standard_normal((batch, d))),
                }
                rows.append([1.0, batch, batch * n * share])
                took.append(max(fastest(ask["store"]) - fastest(ask["engine"]), 1e-5))
            before, counted = log(), _rows(s)
            for _ in range(20):
                s.predict(rng.standard_normal((1, d)), request_id=str(rng.integers(1 << 60)))
            logged.append((log() - before) / 20)
            per_query = (_rows(s) - counted) / 20
    near = (logged[1] - logged[0]) / (n * (0.05 - 0.002))
    fixed = logged[0] - near * n * 0.002 - d
    names = ["write", "write_query", "write_near"]
    return {
        **dict(zip(names, fitted(rows, took), strict=True)),
        "wal_near": near,
        "wal_query": fixed,
        "rows_query": per_query,
    }


def _rows(store: Store) -> float:
    return float(
        sum(store.db.execute(f"SELECT count(*) FROM {t}").get for t in ("answers", "debits", "requests", "audit"))
    )


def _changing(server: Any, log: Callable[[], int]) -> dict[str, float]:
    rng, n, d = np.random.default_rng(3), 60_000, 64
    place = server.new_place()
    with Store.create(place, settings(d, 0.01, PAPER), make_shard=Cluster(Inline, 1, 1).new_shard) as s:
        filled(s, n, d)
        took, logged = {}, {}
        for records in (100, 4000):
            times = []
            for turn in range(4):
                X, names = rng.standard_normal((records, d)), [f"{records}-{turn}-{i}" for i in range(records)]
                before, start = log(), time.perf_counter()
                s.add(X, rng.integers(CLASSES, size=records), names)
                times.append(time.perf_counter() - start)
                logged[records] = log() - before
            took[records] = min(times)
        per_record = (took[4000] - took[100]) / 3900
        s.fold()
        erased: dict[str, list[float]] = defaultdict(list)
        for turn in range(5):
            s.fold()
            erased["alone"].append(_timed(lambda turn=turn: s.forget([f"100-0-{turn}"])))
            s.predict(rng.standard_normal((1, d)))  # 1% of everybody: all blocks
            before = log()
            erased["after a query"].append(_timed(lambda turn=turn: s.forget([f"100-1-{turn}"])))
            wal = log() - before
        blocks = s.engine.ledger.n_owners / BLOCK
    start = time.perf_counter()
    with Store(place, make_shard=Cluster(Inline, 1, 1).new_shard) as s:
        opened = time.perf_counter() - start
    alone, after = min(erased["alone"]), min(erased["after a query"])
    return {
        "add_record": per_record,
        "add": max(took[100] - 100 * per_record, 0.0),
        "wal_record": (logged[4000] - logged[100]) / 3900 - d,
        "forget": alone,
        "forget_block": max(after - alone, 0.0) / blocks,
        "wal_forget": max(wal - blocks * BLOCK * DEBIT, 0.0),
        "open_record": opened / n,
    }


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# The test bed


FAR = ("db", "head", "node")
ROUNDS = 16
"""Turns of which the fastest counts. Windows of TCP still grow in the first ones."""
SIZES = {"n": 100_000, "d": 64, "share": 0.02}


def on_bed() -> tuple[dict[str, float], list[dict[str, Any]]]:
    """What a round trip costs on the bed of namespaces, and batches there at 1, 2 and 4 shards and two delays."""
    from cluster.hosts.bed import Bed

    with Bed(cores=4, health={}) as bed:
        words = [sys.executable, "-W", "ignore", __file__, "--asking", bed.place("scaling"), bed.ray]
        command, known = bed.network.command("first", *words), bed.environment("first")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        found = []
        with subprocess.Popen(command, env=known, **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    continue  # Ray says something
                told = json.loads(line)
                if told.get("way") is not None:
                    for host in FAR:
                        bed.network.link("first", host, delay=told["way"] / 2 if host in told["to"] else 0.0)
                    process.stdin.write("\n")
                    process.stdin.flush()
                else:
                    found.append(told)
        assert process.returncode == 0
    link = found.pop(0)
    return link, found


def asking(place: str, address: str) -> None:
    """Within the bed: time batches at 1, 2 and 4 shards. A line with `way` asks the outside for another delay."""
    from indknn.cluster.ray_hosts import ray_cluster

    def tell(**facts: Any) -> None:
        print(json.dumps(facts), flush=True)

    def delay(way: float, *to: str) -> None:
        tell(way=way, to=to or FAR)
        sys.stdin.readline()

    rng, n, d, share = np.random.default_rng(4), SIZES["n"], int(SIZES["d"]), SIZES["share"]
    with Store.create(place, settings(d, share, PAPER)) as store:
        filled(store, int(n), d)
    for shards in (1, 2, 4):
        with (
            ray_cluster(address, shards, name="scaling", cpus=0.5) as cluster,
            Store(place, make_shard=cluster.new_shard) as store,
        ):
            if shards == 1:
                tell(**_link_costs(store, delay))
            for way in (0.0, 0.02):
                delay(way)
                times = [_timed(lambda: store.predict(rng.standard_normal((BATCH, d)))) for _ in range(ROUNDS + 1)][1:]
                tell(shards=shards, delay=way, fastest=min(times), median=statistics.median(times))
            delay(0.0)


def _link_costs(store: Store, delay: Callable[..., None]) -> dict[str, float]:
    """A call that does nothing, a byte, a trip to the database; with 50 ms between, how often TCP and a query wait."""
    shard: Any = store.engine.shard
    rng, slots, d, far = np.random.default_rng(5), np.arange(16_000), int(SIZES["d"]), 0.05
    size = len(slots) * d

    def turns() -> tuple[float, float, float]:
        """Seconds of an empty call, of one that brings a million bytes, and of a query."""
        calls = (
            lambda: list(shard.status()),
            lambda: shard.bodies_at(slots),
            lambda: store.predict(rng.normal(size=(1, d))),
        )
        empty, large, asked = (fastest(call, ROUNDS) for call in calls)
        return empty, large, asked

    delay(0.0)
    empty, large, asked = turns()
    trip_write = fastest(lambda: store.db.execute("SELECT 1").get, ROUNDS)
    delay(far, "head", "node")
    far_empty, far_large, _ = turns()
    delay(far, "db")
    *_, far_asked = turns()
    waits = max((far_large - large) - (far_empty - empty), 0.01 * far) / far
    trips = (far_asked - asked) / far
    return {
        "trip": empty,
        "byte": max(large - empty, 0.0) / size,
        "window": size / waits,
        "trip_write": trip_write,
        "trips_write": trips,
    }


# Tables and plots


def compared(c: Costs, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the model says about the batches on the bed."""
    rows = []
    for row in found:
        n, d = SIZES["n"], int(SIZES["d"])
        world = World(n, d, row["shards"], n * SIZES["share"], way=row["delay"], byte=c.byte, cores=cores())
        predicted = seconds(query(c, world))
        rows.append({**row, "predicted": predicted, "ratio": predicted / row["fastest"]})
    return rows


def machines(n: float, d: int, memory: float = 64e9, scopes: int = 4) -> tuple[int, float, float]:
    """How many machines of 64 GB hold the hosts, and the bytes of all hosts and of the coordinator."""
    hosts, here = n * (d + 28 + 12 + 12 * scopes), n * (33 + 9 + 8 * scopes)
    return math.ceil(hosts / (0.75 * memory)), hosts, here


def headed(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def sizes_table(d: int) -> list[str]:
    lines = headed("records", "machines of 64 GB", "all hosts", "coordinator, people by number", "by name")
    for n in SHOWN:
        count, hosts, here = machines(n, d)
        lines.append(f"| {_power(n)} | {count} | {_bytes(hosts)} | {_bytes(here)} | {_bytes(here + 200 * n)} |")
    return lines


def table(c: Costs, d: int) -> list[str]:
    names = ("one query", "16 queries", "wire, a query", "one record added", "an erasure")
    lines = headed("records", *names, "a training step", "wire, a step", "to open")
    for n in SHOWN:
        w = large(n, d)
        single, train = query(c, w, 1), step(c, w)
        took = (seconds(single), seconds(query(c, w)))
        changed = add(c, w, 1)["seconds"], forget(c, w, DAY["queries"] / DAY["erasures"])["seconds"]
        cells = [*map(_time, took), _bytes(single["bytes"]), *map(_time, changed)]
        cells += [_time(seconds(train)), _bytes(train["bytes"]), _time(c.open_record * n)]
        lines.append(f"| {_power(n)} | {' | '.join(cells)} |")
    return lines


def large(n: float, d: int) -> World:
    """A cluster with a core for each shard, and as many machines as hold the records."""
    return World(n, d, 16 * machines(n, d)[0], min(NEAR, 0.03 * n))


SHOWN = (1e6, 1e7, 1e8, 1e9)
DAY = {"queries": 1_000_000, "additions": 100_000, "erasures": 1_000}


FOLDS = {
    "12 bytes, folded every 32 MB": lambda c, w: wal_of_query(c, w, 32 << 20),
    "3 bytes, folded every 32 MB": lambda c, w: wal_of_query(c, w, 32 << 20, 3.0),
    "12 bytes, folded when as long as balances": lambda c, w: wal_of_query(c, w, max(32 << 20, w.n * DEBIT)),
    "3 bytes, folded when as long as balances": lambda c, w: wal_of_query(c, w, max(32 << 20, w.n * DEBIT), 3.0),
}
"""Bytes of log for a query, by the rule for debits."""


def day_table(c: Costs, d: int) -> list[str]:
    """Rows and log of PostgreSQL on a day, with four rules for debits."""
    lines = headed("records", "rows", *(f"log: {rule}" for rule in FOLDS), "log of erasures")
    for n in SHOWN:
        w = large(n, d)
        rows = DAY["queries"] * c.rows_query + DAY["additions"] * 3 + DAY["erasures"] * 5
        erased = forget(c, w, DAY["queries"] / DAY["erasures"])["wal"] * DAY["erasures"]
        cells = [_bytes(DAY["queries"] * rule(c, w)) for rule in FOLDS.values()]
        lines.append(f"| {_power(n)} | {rows / 1e6:.1f} million | {' | '.join(cells)} | {_bytes(erased)} |")
    return lines


def _power(n: float) -> str:
    return f"10^{round(math.log10(n))}"


def _bytes(value: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def _time(value: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def plots(c: Costs, rows: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    ns = np.logspace(6, 9, 40)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    names = ("hosts", "coordinator", "network", "database")
    worlds = [large(n, 64) for n in ns]
    for name in names:
        left.loglog(ns, [query(c, w, 1)[name] for w in worlds], label=name)
    left.set(title="one query, d = 64", xlabel="records", ylabel="seconds")
    left.legend()
    for label, rule in FOLDS.items():
        right.loglog(ns, [DAY["queries"] * rule(c, w) for w in worlds], label=label)
    right.set(title="log of PostgreSQL, a million queries", xlabel="records", ylabel="bytes")
    right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(IMAGES / "scaling.svg", metadata={"Date": None})
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(5, 4))
    for delay in sorted({row["delay"] for row in rows}):
        own = [row for row in rows if row["delay"] == delay]
        at = [row["shards"] for row in own]
        (line,) = axes.plot(at, [row["fastest"] for row in own], "o", label=f"measured, {1e3 * delay:g} ms")
        axes.plot(at, [row["predicted"] for row in own], "-", color=line.get_color(), label="predicted")
    axes.set(xlabel="shards", ylabel="seconds for 16 queries", xticks=[1, 2, 4], ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(IMAGES / "scaling-check.svg", metadata={"Date": None})


def write_page(c: Costs, rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Put tables between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    check = headed("shards", "way there and back", "measured", "predicted", "ratio")
    for row in rows:
        times = f"{_time(row['fastest'])} | {_time(row['predicted'])} | {row['ratio']:.2f}"
        check.append(f"| {row['shards']} | {1e3 * row['delay']:g} ms | {times} |")
    units = headed("cost", "seconds, bytes or rows")
    units += [f"| {field.name} | {getattr(c, field.name):.3g} |" for field in fields(Costs)]
    state = (
        "**The machine was busy with other work**, so seconds are too long."
        if facts["busy"]
        else "The machine was idle."
    )
    for name, lines in (
        ("machine", [f"{facts['machine']}. {state}"]),
        ("check", check),
        ("units", units),
        ("sizes", [*sizes_table(64), "", "With 384 features:", "", *sizes_table(384)]),
        ("d64", table(c, 64)),
        ("d384", table(c, 384)),
        ("day", day_table(c, 64)),
    ):
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1]
    PAGE.write_text(text, encoding="utf-8")


GUESSED = {"trip": 5e-4, "byte": 1e-9, "window": 14_600.0, "trip_write": 2e-4, "trips_write": 7.0}
"""What only the test bed can measure, for where it cannot run. TCP begins with such a window."""


def measure(bed: bool, busy: bool) -> dict[str, Any]:
    found = dict(GUESSED)
    rows: list[dict[str, Any]] = []
    for name, part in (("queries", measured_queries), ("steps", measured_steps), ("database", measured_database)):
        start = time.perf_counter()
        found |= part()
        print(f"  {name}: {time.perf_counter() - start:.0f} s", flush=True)
    if bed:
        link, rows = on_bed()
        found |= link
    where = ", ".join(f"{key}: {value}" for key, value in machine().items())
    return {"costs": found, "bed": rows, "facts": {"busy": busy, "machine": where}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="file", type=Path)
    parser.add_argument("--no-bed", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--asking", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.asking:
        asking(*given.asking)
        return
    known = json.loads(given.file.read_text()) if given.file else measure(not given.no_bed, given.busy)
    costs = Costs(**known["costs"])
    rows = compared(costs, known["bed"])
    FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    plots(costs, rows)
    write_page(costs, rows, known["facts"])
    for row in rows:
        print({key: round(value, 4) for key, value in row.items()})
    print(json.dumps(asdict(costs), indent=1))


if __name__ == "__main__":
    main()

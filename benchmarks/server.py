"""Measures queries per second of the HTTP service, with a real server process and a fast client process on loopback.

python benchmarks/server.py                  n = 50,000 at d = 64 and d = 768, 16 connections, 20 seconds each
python benchmarks/server.py --seconds 5      quick
python benchmarks/server.py --mode endless   the default of `indknn init`, instead of Algorithm 3
python benchmarks/server.py --mode endless --fresh
                                             measured from the first query of a new store, when the server says that
                                             it is ready, and while the shared model is being trained
python benchmarks/server.py --json           for machines

Every request has one new query, which is durably charged before it is answered. Every second, a person is added and
another one is forgotten. For comparison, the same run measures the store without HTTP, one query after another, and the
same client on /v2/models/indknn/ready, which shows the cost of HTTP alone. At the end it runs `indknn verify`.
"""

from __future__ import annotations

import argparse
import json
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indknn.settings import Settings
from indknn.store import Store
from indknn.store.journal import Debits
from indknn.store.keyfile import create, keys_path

CLASSES, CLUSTERS = tuple(range(10)), 40
ANALYSTS = 4
TRICKLE = 1.0  # seconds between two changes, each a person who comes and one who is forgotten


def clusters(d: int) -> Any:
    centres = np.random.default_rng(7).standard_normal((CLUSTERS, d))
    return centres / np.linalg.norm(centres, axis=1, keepdims=True)


def points(n: int, d: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Around 40 directions, so that about 2.5% of all are near one."""
    which = rng.integers(CLUSTERS, size=n)
    return clusters(d)[which] + rng.standard_normal((n, d)) * (0.5 / np.sqrt(d)), which % len(CLASSES)


MODES: dict[str, dict[str, Any]] = {
    "algorithm3": {"tau": 0.6, "max_queries": 200_000, "reuse": "none"},
    "endless": {"mode": "model", "max_queries": None},
}


def build(path: Path, n: int, d: int, mode: str) -> dict[str, str]:
    """A store, and the keys of four analysts and a curator."""
    settings = Settings(n_features=d, classes=CLASSES, epsilon=4.0, **MODES[mode])
    with Store.create(path, settings) as store:
        X, y = points(n, d, np.random.default_rng(1))
        store.add(X, y, [f"person-{i}" for i in range(n)])
    names = {f"analyst-{i}": "analyst" for i in range(ANALYSTS)} | {"curator": "curator"}
    return {name: create(keys_path(path), role, name)[1] for name, role in names.items()}


def alone(path: Path, d: int, seconds: float) -> dict[str, float]:
    """The store without a network: one query after another."""
    rng, times, sizes = np.random.default_rng(2), [], []
    with Store(path) as store:
        store.add_analyst("alone")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            Q, _ = points(1, d, rng)
            start = time.perf_counter()
            store.predict(Q, "alone")
            times.append(time.perf_counter() - start)
        charged = store.db.execute("SELECT body FROM debits ORDER BY seq DESC LIMIT 200")
        sizes = [len(Debits.decode(body).slots) for (body,) in charged]
    return {"qps": 1 / statistics.mean(times), "participants": statistics.median(sizes or [0])}


def message(method: str, path: str, key: str, body: bytes = b"", kind: str = "application/octet-stream") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def queries(d: int, keys: list[str], as_json: bool, seed: int) -> Iterator[bytes]:
    """Requests that were never sent before."""
    rng = np.random.default_rng(seed)
    while True:
        Q, _ = points(256, d, rng)
        for i, row in enumerate(Q.astype("<f4")):
            if as_json:
                tensor = {"name": "features", "shape": [1, d], "datatype": "FP32", "data": row.tolist()}
                body, kind = json.dumps({"inputs": [tensor]}).encode(), "application/json"
            else:
                body, kind = row.tobytes(), "application/octet-stream"
            yield message("POST", "/v2/models/indknn/infer", keys[i % len(keys)], body, kind)


def drive(port: int, requests: Iterator[bytes], connections: int, seconds: float) -> dict[str, Any]:
    """Keep so many connections busy for so long; every answer is awaited before the next request on its connection."""
    selector, sent, times, statuses = selectors.DefaultSelector(), {}, [], {}
    stock = [next(requests) for _ in range(4096)]  # made beforehand: the client shares the machine with the server
    buffers: dict[socket.socket, bytes] = {}
    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        buffers[connection], sent[connection] = b"", time.perf_counter()
        connection.sendall(stock.pop())
    start = time.perf_counter()
    end = start + seconds
    while sent:
        for key, _ in selector.select(5.0):
            connection: Any = key.fileobj
            buffers[connection] += connection.recv(65536)
            head, gap, body = buffers[connection].partition(b"\r\n\r\n")
            if not gap or len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]):
                continue
            now = time.perf_counter()
            times.append(now - sent.pop(connection))
            status = int(head[9:12])
            statuses[status] = statuses.get(status, 0) + 1
            buffers[connection] = b""
            if now < end:
                connection.sendall(stock.pop() if stock else next(requests))
                sent[connection] = now
    took = time.perf_counter() - start
    for connection in buffers:
        connection.close()
    ordered = np.sort(times)
    p50, p99 = (float(np.quantile(ordered, q)) for q in (0.5, 0.99))
    return {
        "qps": len(times) / took,
        "first_ms": times[0] * 1e3,
        "p50_ms": p50 * 1e3,
        "p99_ms": p99 * 1e3,
        "p99_over_p50": p99 / p50,
        "worst_ms": float(ordered[-1]) * 1e3,
        "statuses": {str(k): v for k, v in sorted(statuses.items())},
    }


def client(asked: argparse.Namespace) -> None:
    """The client process: reads what to do from stdin, prints what came of it."""
    keys = json.load(sys.stdin)
    if asked.drive == "live":
        requests: Iterator[bytes] = iter(lambda: message("GET", "/v2/models/indknn/ready", keys[0]), None)
    else:
        requests = queries(asked.d, keys, asked.drive == "json", asked.seed)
    print(json.dumps(drive(asked.port, requests, asked.connections, asked.seconds)))


def run_client(port: int, what: str, d: int, keys: dict[str, str], connections: int, seconds: float) -> Any:
    command = [sys.executable, __file__, "--drive", what, "--port", str(port), "--d", str(d)]
    command += ["--connections", str(connections), "--seconds", str(seconds), "--seed", str(time.time_ns() % 2**31)]
    analysts = json.dumps([key for name, key in keys.items() if name != "curator"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(analysts)
        process.stdin.close()
        changes = 0
        while what != "live" and process.poll() is None:
            change(port, keys["curator"], d, changes)
            changes += 1
            time.sleep(TRICKLE)
        return {**json.loads(process.stdout.read()), "changes_meanwhile": changes}


def change(port: int, key: str, d: int, number: int) -> None:
    """Add a person, then forget the one before."""
    X, y = points(1, d, np.random.default_rng(10_000 + number))
    url, head = f"http://127.0.0.1:{port}/v1", {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = {"records": [{"features": X[0].tolist(), "label": int(y[0]), "owner": f"visitor-{number}"}]}
    asks = [urllib.request.Request(f"{url}/records", json.dumps(body).encode(), head, method="POST")]
    if number:
        asks.append(urllib.request.Request(f"{url}/owners/visitor-{number - 1}", headers=head, method="DELETE"))
    for ask in asks:
        with urllib.request.urlopen(ask) as answer:
            answer.read()


def served(path: Path, d: int, keys: dict[str, str], connections: int, seconds: float, fresh: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "indknn", "serve", str(path), "--port", "0", "--name", "indknn"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            wait_until_ready(port)
            result = {"raw": run_client(port, "raw", d, keys, connections, seconds)} if fresh else {}
            result["live"] = run_client(port, "live", d, keys, connections, min(seconds, 3.0))
            for what in () if fresh else ("raw", "json"):
                run_client(port, what, d, keys, connections, 0.5)
                result[what] = run_client(port, what, d, keys, connections, seconds)
        finally:
            server.terminate()
        result["exit_code"] = server.wait(30)
    return result


def wait_until_ready(port: int) -> None:
    """As a load balancer would: nobody is sent to a server that is still loading what answers need."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready"):
                return
        except urllib.error.HTTPError:
            time.sleep(0.05)


def measure(folder: Path, n: int, d: int, asked: argparse.Namespace) -> dict[str, Any]:
    path = folder / f"{d}.store"
    keys = build(path, n, d, asked.mode)
    result: dict[str, Any] = {} if asked.fresh else {"alone": alone(path, d, min(asked.seconds, 3.0))}
    result |= served(path, d, keys, asked.connections, asked.seconds, asked.fresh)
    verify = [sys.executable, "-m", "indknn", "verify", str(path)]
    result["verify"] = subprocess.run(verify, capture_output=True, text=True, check=False).stdout.strip()
    if not asked.fresh:
        result["raw_to_alone"] = result["raw"]["qps"] / result["alone"]["qps"]
    result["raw_to_live"] = result["raw"]["qps"] / result["live"]["qps"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--features", type=int, nargs="+", default=[64, 768])
    parser.add_argument("--mode", choices=sorted(MODES), default="algorithm3", help="how the store answers")
    parser.add_argument("--fresh", action="store_true", help="from the first second, without asking the store before")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the stores are made; by default a temporary folder")
    for name, kind in (("--drive", str), ("--port", int), ("--d", int), ("--seed", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)  # for the client process
    asked = parser.parse_args()
    if asked.drive:
        client(asked)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=asked.folder))
    try:
        result = {f"{asked.records}x{d}": measure(folder, asked.records, d, asked) for d in asked.features}
    finally:
        shutil.rmtree(folder)
    if asked.json:
        print(json.dumps(result, indent=2))
        return
    for part, values in result.items():
        print(part)
        for name, value in values.items():
            shown = value.items() if isinstance(value, dict) else [("", value)]
            text = "  ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown)
            print(f"  {name:<14}{text.strip()}")


if __name__ == "__main__":
    main()

"""Measures how much hostile clients disturb an honest analyst, with a real server process on loopback.

python benchmarks/abuse.py                 n = 20,000, d = 64; each kind alone, then all together
python benchmarks/abuse.py --clients 50 --seconds 5
python benchmarks/abuse.py --only pipelined

The honest analyst keeps four connections busy with new queries. Each query is durably charged, with a witness. A
hostile client has no key, or a key of another analyst, which has no limits unless stated otherwise. It sends a request,
reads the answer, and comes back after a pause. A stranger has no key and never waits: it sends requests one behind the
other at a fixed rate, and when its connection is closed it opens the next one. Hostile clients run at a lower priority,
because real ones would use other machines. Each kind is compared with the honest analyst's times just before it. The
report shows both, and the memory of the server and its reader process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from indknn.store.keyfile import create, keys_path
from server import build, drive, queries

INFER = "/v2/models/indknn/infer"
IDLE = 1100


def brackets(size: int) -> bytes:
    """A name that is a list of lists."""
    return b'{"inputs":[{"name":[' + b"[]," * (size // 3) + b"[]]}]}"


DEEP = b'{"inputs":[{"name":' + b"[" * 1000 + b"]" * 1000 + b"}]}"
NUMBERS = (
    b'{"inputs":[{"name":"features","datatype":"FP64","shape":[1024,64],"data":[' + b"0.12345678901," * 65535 + b"1]}]}"
)
KINDS: dict[str, tuple[str, bytes, int]] = {  # whose key, the body, how many bytes of it are sent (0: all)
    "9 MB of brackets, key at its limits": ("limited", brackets(9_000_000), 0),
    "9 MB of brackets": ("hostile", brackets(9_000_000), 0),
    "30 MB of brackets": ("hostile", brackets(30_000_000), 0),
    "4 MB of brackets": ("hostile", brackets(4_000_000), 0),
    "unfinished bodies": ("hostile", brackets(4_000_000), 1_000_000),
    "nesting of 1,000": ("hostile", DEEP, 0),
    "the largest request, all zeros but one": ("limited", NUMBERS, 0),
}
WRONG_KEY = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\r\n"
NO_KEY = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode()
HEALTH = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nX: "
STREAMS: dict[str, tuple[bytes, float, int]] = {  # what is repeated, MB a second in all, connections (0: all clients)
    "pipelined health, .5 MB/s": (HEALTH, 0.5, 1),
    "pipelined health, 3 MB/s": (HEALTH, 3.0, 1),
    "pipelined health, 30 MB/s": (HEALTH, 30.0, 1),
    "pipelined wrong keys, .5 MB/s": (WRONG_KEY, 0.5, 1),
    "pipelined wrong keys, 3 MB/s": (WRONG_KEY, 3.0, 1),
    "pipelined queries without a key, 3 MB/s": (NO_KEY, 3.0, 1),
    "pipelined, then half a request, 3 MB/s": (8 * HEALTH + HALF, 3.0, 0),
    "pipelined health on all connections, 3 MB/s": (HEALTH, 3.0, 0),
    "wrong keys on all connections, .1 MB/s": (WRONG_KEY, 0.1, 0),
    "health on all connections, .1 MB/s": (HEALTH, 0.1, 0),
}
_BLOCK = 0.02  # seconds between two pieces of a stream


async def hostile(port: int, key: str, body: bytes, sent: int, pause: float, told: Counter[str]) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head.encode())
                data = memoryview(body)[: sent or len(body)]
                for start in range(0, len(data), 1 << 16):
                    writer.write(data[start : start + (1 << 16)])
                    await writer.drain()
                answer = await asyncio.wait_for(reader.read(4096), 40)
                told[answer[9:12].decode() or "closed"] += 1
            finally:
                writer.close()
        except (OSError, TimeoutError) as error:
            told[type(error).__name__] += 1
        await asyncio.sleep(pause)


async def stream(port: int, text: bytes, rate: float, told: Counter[str]) -> None:
    """Requests one behind the other, whatever the server says, on one connection after the other."""
    size = max(len(text), round(rate * _BLOCK * 1e6))
    block, pause = text * -(-size // len(text)), _BLOCK * size / (rate * _BLOCK * 1e6)

    async def listen(reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            for line in data.split(b"HTTP/1.1 ")[1:]:
                told[line[:3].decode("latin-1")] += 1

    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            told["connections"] += 1
            listening = asyncio.ensure_future(listen(reader))
            try:
                while not listening.done():
                    writer.write(block)
                    sending = asyncio.ensure_future(writer.drain())
                    await asyncio.wait({listening, sending}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
                    await asyncio.sleep(pause)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
                writer.transport.abort()
        except OSError as error:
            told[type(error).__name__] += 1
            await asyncio.sleep(_BLOCK)


async def idle(port: int, count: int, told: Counter[str]) -> None:
    """Connections that say nothing. Those that are closed are opened again."""
    open_now: list[Any] = []
    while True:
        open_now = [pair for pair in open_now if not pair[0].at_eof()]
        while len(open_now) < count:
            try:
                open_now.append(await asyncio.open_connection("127.0.0.1", port))
                told["opened"] += 1
            except OSError as error:
                told[type(error).__name__] += 1
                break
        await asyncio.sleep(1.0)


def attack(asked: argparse.Namespace) -> None:
    """The process of the hostile clients: reads what to do from stdin, goes on until that is closed."""
    os.nice(10)
    keys, kinds = json.loads(sys.stdin.readline())
    told: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}

    async def run() -> None:
        tasks = []
        for kind in kinds:
            if kind == "idle connections":
                tasks.append(asyncio.ensure_future(idle(asked.port, IDLE, told[kind])))
                continue
            if kind in STREAMS:
                text, rate, many = STREAMS[kind]
                n = many or asked.clients
                tasks += [asyncio.ensure_future(stream(asked.port, text, rate / n, told[kind])) for _ in range(n)]
                continue
            whose, body, sent = KINDS[kind]
            each = max(1, asked.clients // sum(k in KINDS for k in kinds))
            tasks += [
                asyncio.ensure_future(hostile(asked.port, keys[whose], body, sent, asked.pause, told[kind]))
                for _ in range(each)
            ]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in tasks:
            task.cancel()

    asyncio.run(run())
    print(json.dumps(told))


def memory(pid: int) -> float:
    """MB of the server and of the processes that it started."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def honest(port: int, d: int, key: str, seconds: float, pid: int) -> dict[str, Any]:
    """The honest analyst in a process of its own, while this one looks at the memory."""
    command = [sys.executable, __file__, "--honest", key, "--port", str(port), "--d", str(d), "--seconds", str(seconds)]
    most = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, memory(pid))
            time.sleep(0.05)
        assert process.stdout is not None
        return {**json.loads(process.stdout.read()), "memory_mb": most}


def measure(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = folder / "a.store"
    keys = build(path, asked.records, asked.d, "algorithm3")
    file = keys_path(path)
    keys["hostile"] = create(file, "analyst", "eve")[1]
    keys["limited"] = create(file, "analyst", "mallory", rate=0.1, max_queries=0)[1]
    command = [sys.executable, "-m", "indknn", "serve", str(path), "--port", "0", "--name", "indknn"]
    command += ["--witness", str(folder / "witness")]
    result: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            honest(port, asked.d, keys["analyst-0"], 2.0, server.pid)  # warm
            kinds = [kind for kind in (*KINDS, *STREAMS, "idle connections") if asked.only in kind]
            for name, chosen in [*((kind, [kind]) for kind in kinds if not asked.together), ("all together", kinds)]:
                undisturbed = honest(port, asked.d, keys["analyst-0"], asked.seconds, server.pid)
                line = [sys.executable, __file__, "--attack", "--port", str(port), "--clients", str(asked.clients)]
                with subprocess.Popen(
                    [*line, "--pause", str(asked.pause)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                ) as attackers:
                    assert attackers.stdin is not None
                    assert attackers.stdout is not None
                    attackers.stdin.write(json.dumps([keys, chosen]) + "\n")
                    attackers.stdin.flush()
                    time.sleep(2.0)
                    found = honest(port, asked.d, keys["analyst-0"], asked.seconds, server.pid)
                    attackers.stdin.close()
                    told = json.loads(attackers.stdout.read())
                found["p99_to_undisturbed"] = found["p99_ms"] / undisturbed["p99_ms"]
                found["undisturbed_p99_ms"] = undisturbed["p99_ms"]
                found["memory_above"] = found["memory_mb"] - undisturbed["memory_mb"]
                result[name] = {**found, "hostile_clients_were_told": told}
        finally:
            server.terminate()
            result["exit_code"] = server.wait(60)
    verify = [sys.executable, "-m", "indknn", "verify", str(path), "--witness", str(folder / "witness")]
    result["verify"] = subprocess.run(verify, capture_output=True, text=True, check=False).stdout.strip()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds that a hostile client waits between two tries"
    )
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--only", default="", help="only the kinds whose names contain this")
    parser.add_argument("--together", action="store_true", help="only all kinds at once")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--attack", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--honest", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.attack:
        attack(asked)
        return
    if asked.honest:
        print(json.dumps(drive(asked.port, queries(asked.d, [asked.honest], False, time.time_ns()), 4, asked.seconds)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        result = measure(asked, Path(folder))
    if asked.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        if not isinstance(value, dict):
            print(f"{name}: {value}")
            continue
        figures = "  ".join(f"{k} {v:.4g}" for k, v in value.items() if isinstance(v, float))
        print(f"{name}\n  {figures}  {value['statuses']}  {value.get('hostile_clients_were_told', '')}")


if __name__ == "__main__":
    main()

"""Reads long JSON in a separate process, so that nobody else waits for it.

Python reads JSON in one piece, and other threads stand still meanwhile. 30 MB take seconds. So a process beside the
server does it, one body at a time, with a limit on its memory. Its results are small: arrays instead of lists.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

from indknn.server.limits import SMALL
from indknn.server.problems import Problem, as_problem

log = logging.getLogger("indknn.server")
_SECONDS = 20.0  # for one body; then the process is ended
_QUICK = 1 << 20  # bytes of numbers that are copied faster than a thread is woken
_MEMORY = 1 << 30  # bytes beyond what the process has when it starts
T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """How much structure a long body may have: opening brackets and commas. A valid request never has more."""

    brackets: int
    commas: int

    def check(self, body: bytes) -> None:
        """Refuse a body with more structure before it is parsed into lists, which take far more memory."""
        for what, found, most in (
            ("lists and objects", body.count(b"[") + body.count(b"{"), self.brackets),
            ("values", body.count(b","), self.commas),
        ):
            if found > most:
                raise Problem(422, f"the body has more than {most} {what}: send fewer rows, or names without commas")


class Reader:
    """Reads short bodies at once and long ones in the other process. Nobody else has to wait for either."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "reader")
        self._arrays = ThreadPoolExecutor(1, "arrays")

    async def read(
        self, read: Callable[..., T], body: bytes | bytearray, bounds: Bounds, *rest: Any, json: int | None = None
    ) -> T:
        """The result of `read(body, *rest)`, or the `Problem` that it raises. `read` must be a function of a module.

        `json` is how many bytes of the body are JSON, if not all are.
        """
        loop = asyncio.get_running_loop()
        if (len(body) if json is None else json) > SMALL:
            result: T = await loop.run_in_executor(self._thread, self._elsewhere, read, body, bounds, rest)
            return result
        if len(body) > _QUICK:
            return await loop.run_in_executor(self._arrays, partial(read, body, *rest))
        return read(body, *rest)

    def close(self) -> None:
        """End the process."""
        for threads in (self._thread, self._arrays):
            threads.shutdown()
        self._end()

    def _elsewhere(
        self, read: Callable[..., Any], body: bytes | bytearray, bounds: Bounds, rest: tuple[Any, ...]
    ) -> Any:
        try:
            process = self._started()
            overdue = Timer(_SECONDS, process.kill)  # then writing or reading fails
            overdue.start()
            try:
                done, result, where = _exchange(process, pickle.dumps((read, bounds, rest)), body)
            finally:
                overdue.cancel()
        except (OSError, EOFError):
            self._end()
            text = "this body could not be read; send fewer rows at once"
            raise Problem(503, text, "busy", ((b"retry-after", b"1"),)) from None
        if where:
            log.error("in the process that reads long bodies: %s", where)
        if not done:
            raise Problem(*result)
        return result

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-P", "-c", "from indknn.server.reader import main; main()"]
            paths = {
                "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a traceback may hold features or names
                env={**os.environ, **paths},
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError), process:  # what was not sent is not sent
                process.wait()


def _exchange(process: subprocess.Popen[bytes], *parts: bytes | bytearray) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    with Connection(os.dup(process.stdin.fileno()), readable=False) as to:
        for part in parts:
            to.send_bytes(part)
    with Connection(os.dup(process.stdout.fileno()), writable=False) as answer:
        return answer.recv()


def _attempt(read: Callable[..., Any], body: bytes, bounds: Bounds, rest: tuple[Any, ...]) -> tuple[bool, Any, str]:
    """Whether it was read, the result or the problem, and for an unexpected error where it happened."""
    try:
        bounds.check(body)
        return True, read(body, *rest), ""
    except Problem as problem:
        return False, (problem.status, problem.message, problem.code, problem.headers), ""
    except (MemoryError, RecursionError):
        return False, (413, "the body takes too much memory to read; send fewer rows at once"), ""
    except Exception as error:
        refusal = as_problem(error)
        frames = "".join(traceback.format_tb(error.__traceback__))  # without the text, which may hold features or names
        return False, (refusal.status, refusal.message, refusal.code), f"{type(error).__name__}\n{frames}"


def main() -> None:
    """The main program of the other process: read bodies from standard input until the server closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it too; the server decides when this process ends
    os.nice(5)  # short requests come first
    with suppress(FileNotFoundError):  # other systems have no limit
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + _MEMORY, has + _MEMORY))
    asked, answers = Connection(0, writable=False), Connection(1, readable=False)
    with suppress(EOFError):
        while True:
            read, bounds, rest = asked.recv()
            answers.send(_attempt(read, asked.recv_bytes(), bounds, rest))

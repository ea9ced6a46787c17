"""What the operator sees of a running server: counters for Prometheus, and a log.

Nothing is counted by individual budgets (rule 8). Still, analysts may not see the counters: totals, times and memory
would tell one analyst what the others are doing, and how much data there is.

The log has a line for each request and each event, as text or JSON, on stderr. It holds no names of people, analysts or
files, no features, labels or queries, and nothing that a client has chosen: a route is logged by its template, and a
request by a random id, which its answer carries too. A separate thread writes it. If whoever reads the lines is slow,
lines are dropped and counted, and nobody waits.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    generate_latest,
)

from indknn import __version__
from indknn.settings import LogForm

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STAGE_SECONDS = (0.0001, 0.00025, 0.0005, *_SECONDS)
STAGES = {
    "arrive": "from the end of the headers to the end of the body",
    "read": "making numbers of the body",
    "wait": "in the queue, until its batch is begun",
    "compute": "scan, mechanism and charges of a batch",
    "commit": "until the disk has it, for all that are committed together",
    "answer": "from the commit until the answer leaves, with the rest of the tick",
}
"""The stages of a prediction, in order."""
_WAITING = 10_000  # lines that may wait to be written
_GATHERED = 0.02  # seconds in which lines are gathered that are written together
_LAST_SECONDS = 2.0  # to write what waits when the server ends
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The counters of one server, in a separate registry, and those of its process.

    Their names are by Prometheus' conventions: they end in their unit, and `process_*` is about the process.
    """

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        ProcessCollector(registry=own)
        build = Info("indknn_build", "What is running. The value is always 1.", registry=own)
        build.info({"version": __version__, "python": platform.python_version()})
        self.ready = Gauge("indknn_ready", "Whether queries can be answered: 1 or 0.", registry=own)
        self.backed_up = Gauge(
            "indknn_last_backup_timestamp_seconds", "When the last backup was made by this process.", registry=own
        )
        self.requests = Counter("indknn_requests", "Requests by route and status.", ["route", "status"], registry=own)
        self.answered = Counter("indknn_queries_answered", "Answers: queries charged, durably.", registry=own)
        self.repeated = Counter("indknn_queries_repeated", "Queries answered again, at no charge.", registry=own)
        self.late = Counter("indknn_late_answers", "Answers that took longer than their tick.", registry=own)
        self.waiting = Gauge("indknn_queries_waiting", "Queries that wait for an answer.", registry=own)
        self.connections = Gauge("indknn_connections", "Open connections.", registry=own)
        self.body_bytes = Gauge("indknn_body_bytes", "Bytes of larger bodies that are on their way.", registry=own)
        stages = Histogram(
            "indknn_stage_seconds", "Time by stage of a prediction.", ["stage"], buckets=_STAGE_SECONDS, registry=own
        )
        self.stage = {name: stages.labels(name) for name in STAGES}
        self.infer_seconds = Histogram(
            "indknn_infer_seconds", "Time from a whole request to its answer.", buckets=_SECONDS, registry=own
        )
        self.batch_queries = Histogram(
            "indknn_batch_queries", "Queries that shared a scan.", buckets=_QUERIES, registry=own
        )

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """All metrics, without the library's `_created` samples, which would show when a route was first used."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Log:
    """Takes lines from any thread. `write` gets whole lines as bytes."""

    def __init__(self, form: LogForm = "none", write: Callable[[bytes], None] | None = None):
        self.on = form != "none"
        self._line = _as_json if form == "json" else _as_text
        self._write = _to_stderr if write is None else write
        self._lines: SimpleQueue[tuple[datetime, str, dict[str, Any]] | None] = SimpleQueue()
        self._dropped = 0
        self._thread = Thread(target=self._run, daemon=True)
        if self.on:
            self._thread.start()

    def event(self, name: str, **facts: Any) -> None:
        """Log an event with its facts, which are numbers or words of this program."""
        if self.on:
            if self._lines.qsize() < _WAITING:
                self._lines.put((datetime.now(UTC), name, facts))
            else:
                self._dropped += 1

    def close(self) -> None:
        """Write what waits, unless nobody reads it. Nothing is logged after that."""
        if self.on:
            self.on = False
            self._lines.put(None)
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        last = False
        while not last:
            group = [self._lines.get()]
            if group[0] is not None:
                time.sleep(_GATHERED)  # if each line woke this thread, it would take turns with those that answer
            with suppress(Empty):
                while True:
                    group.append(self._lines.get_nowait())
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                group.insert(0, (datetime.now(UTC), "dropped", {"lines": dropped}))
            last = None in group
            with suppress(OSError):  # nobody reads it any more
                self._write(b"".join(self._line(*one) for one in group if one is not None))


class ForLog(logging.Handler):
    """Gives what libraries and this program say with `logging` to the log, without the texts of errors."""

    def __init__(self, log: Log):
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record."""
        frames = "" if not record.exc_info else "".join(traceback.format_tb(record.exc_info[2]))
        self._log.event(record.levelname.lower(), logger=record.name, message=record.getMessage() + frames)


def new_id() -> str:
    """A random id for a request. A number that counts would tell an analyst how many requests others send."""
    return os.urandom(8).hex()


def _as_json(at: datetime, name: str, facts: dict[str, Any]) -> bytes:
    return json.dumps({"at": _time(at), "event": name, **facts}).encode() + b"\n"


def _as_text(at: datetime, name: str, facts: dict[str, Any]) -> bytes:
    """A line for people.

    >>> _as_text(datetime(2026, 1, 2, tzinfo=UTC), "commit", {"answers": 2, "message": "a b"})
    b'2026-01-02T00:00:00.000Z commit answers=2 message="a b"\\n'
    """
    words = (f"{key}={_word(value)}" for key, value in facts.items())
    return " ".join([_time(at), name, *words]).encode() + b"\n"


def _word(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def _to_stderr(lines: bytes) -> None:
    """Write to the descriptor itself: a thread that hangs in it must not hold a lock of the interpreter."""
    left = memoryview(lines)
    while left:
        left = left[os.write(2, left) :]

"""Counters for Prometheus. Nothing here depends on individual budgets (rule 8).

Still, analysts may not see them: totals and times would tell one analyst what the others are doing.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

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
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The counters of one server, in a separate registry. The default registry also describes the process."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
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

"""Counters in Prometheus' text format, written by hand. Nothing here depends on individual budgets.

Even so they are for the curator's side: totals and times would tell an analyst what others are doing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts by upper bound."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """In the text format: cumulative."""
        result, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            result.append(f'{name}_bucket{{le="{bound}"}} {so_far}')
        return [*result, f"{name}_sum {self.total:.6f}", f"{name}_count {so_far}"]


class Metrics:
    """What a server counts."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.answered = 0
        self.late = 0
        self._seconds = Histogram(_SECONDS)
        self._rows = Histogram(_ROWS)

    def request(self, route: str, status: int) -> None:
        """A request was answered."""
        self.requests[route, status] += 1

    def infer(self, seconds: float, rows: int) -> None:
        """Predictions left, so long after they were asked for."""
        self.answered += rows
        self._seconds.add(seconds)

    def batch(self, rows: int) -> None:
        """So many queries shared a scan."""
        self._rows.add(rows)

    def text(self, waiting: int) -> str:
        """All of it."""
        lines = ["# HELP indknn_requests_total Requests by route and status.", "# TYPE indknn_requests_total counter"]
        for (route, status), n in sorted(self.requests.items()):
            lines.append(f'indknn_requests_total{{route="{route}",status="{status}"}} {n}')
        for name, kind, text, value in (
            ("indknn_queries_answered_total", "counter", "Queries answered, durably charged.", self.answered),
            ("indknn_late_answers_total", "counter", "Answers that took longer than their tick.", self.late),
            ("indknn_queries_waiting", "gauge", "Queries that wait for an answer.", waiting),
        ):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        for name, text, histogram in (
            ("indknn_infer_seconds", "Time from a whole request to its answer.", self._seconds),
            ("indknn_batch_queries", "Queries that shared a scan.", self._rows),
        ):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram", *histogram.lines(name)]
        return "\n".join(lines) + "\n"

"""The clock. Time is public, and everything that depends on it reads it here.

Tests and audits replace `seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HOUR = 60
"""Minutes per hour."""
DAY = 24
"""Hours per day."""


seconds: Callable[[], float] = time.time
"""Seconds since 1970, in UTC."""


def minute() -> int:
    """Whole minutes since 1970."""
    return int(seconds()) // 60

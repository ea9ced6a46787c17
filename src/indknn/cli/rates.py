"""How often something happens, as people write it."""

from __future__ import annotations

from indknn.errors import InvalidInputError

_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365.25 / 12, "year": 365.25}


def per_day(text: str, name: str) -> float:
    """A rate per day.

    >>> per_day("1000/day", "rate"), per_day("7/week", "rate"), per_day("0", "updates")
    (1000.0, 1.0, 0.0)
    """
    number, _, unit = text.replace(",", "").partition("/")
    try:
        value = float(number) / _DAYS[unit.strip().removesuffix("s") or "day"]
    except (ValueError, KeyError):
        value = -1.0
    if not 0.0 <= value < 1e12:
        raise InvalidInputError(f"{name} must be like 1000/day, per {', '.join(_DAYS)}, got {text!r}")
    return value


def in_time(count: float, rate: float | None) -> str:
    """How long so many take, in brackets; nothing without a rate.

    >>> in_time(3000, 1000.0), in_time(3000, None)
    (' (3 days)', '')
    """
    if not rate:
        return ""
    days = count / rate
    for unit in ("year", "month", "day", "hour"):
        amount = days / _DAYS[unit]
        if amount >= 2 or unit == "hour":
            return f" ({amount:.2g} {unit}s)"
    return ""

"""Estimates how long the budgets last and how good the answers will be, from public information alone.

The forecast looks at nobody's ledger. It *estimates* what an average person has spent from what was released: how many
questions were asked, with which noise, and which share of pairs of queries is near. A figure that depended on
individual budgets would have to be paid for (rule 8). A real person may have spent more or less.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import floor
from typing import Any

import numpy as np

from indknn.models.adviser import Adviser
from indknn.models.rules import Card
from indknn.models.shown_numbers import NumberCard
from indknn.types import FloatArray


@dataclass(frozen=True)
class Nearness:
    """Estimates from public queries: the share of pairs within τ, and the mean κ² of those pairs."""

    near: float
    kappa2: float


@dataclass(frozen=True)
class Models:
    """How often the models are right about the records, by the latest report card, and the standard error of that."""

    right: float
    error: float


@dataclass(frozen=True)
class Times:
    """How budgets and records depend on the clock, which is public. All of it in days.

    `elapsed` are the days of this period, or of the store. `begun` are the periods that have begun.
    """

    pace: float | None = None
    elapsed: float = 0.0
    renew: float | None = None
    begun: int = 1
    keep: float | None = None

    @property
    def paced(self) -> float:
        """The share of their part that votes may have used by now."""
        return 1.0 if self.pace is None else min(self.elapsed / self.pace, 1.0)

    @property
    def renewed_in(self) -> float | None:
        """The days until the next period begins."""
        return None if self.renew is None else max(self.renew - self.elapsed, 0.0)

    def until(self, left: float, part: float, price: float) -> float | None:
        """The days until only `part` is left of what is `left`, if a day costs `price`. Both are shares of a ledger.

        Votes can be at most as fast as their pace. None if the next period begins first.

        >>> Times(pace=100, elapsed=10).until(0.95, 0.0, 0.5), Times(renew=30, elapsed=10).until(0.5, 0.0, 0.01)
        (90.0, None)
        """
        allowed = 0.0 if self.pace is None else self.pace * (1.0 - part) - self.elapsed
        days = max((left - part) / price, allowed, 0.0)
        return None if self.renewed_in is not None and days >= self.renewed_in else days


@dataclass(frozen=True)
class Stream:
    """The input of a forecast. Every field is public. None means that nothing public tells it.

    `price` is the expected charge of an average person for one question, as a share of B, at the present noise.
    `asked_share` is the share of the latest answers for which people were asked.
    """

    answered: int
    asked: int
    asked_share: float
    left: float | None
    price: float | None
    planned: int | None = None
    models: Models | None = None
    alone: bool = False
    """Whether models go on answering when nobody can be asked any more."""
    times: Times = Times()


@dataclass(frozen=True)
class Forecast:
    """Numbers of further queries and of days. None: nothing public tells it, or it never happens."""

    answered: int
    asked_share: float
    left: float | None
    until_half: int | None
    until_used_up: int | None
    planned_left: int | None
    accuracy_alone: float | None
    accuracy_alone_error: float | None
    ends: bool
    """Whether there comes a time when answers are nothing but noise."""
    days_until_half: float | None
    days_until_used_up: float | None
    left_by_now: float | None
    """What is left of the part that votes may have used by now. It is `left` if votes are not paced."""
    until_pace: int | None
    """How many queries that allows. Further ones must wait, or find fewer people."""
    queries_a_day: int | None
    """How many queries a day the pace allows, until its end."""
    period: int | None
    """If budgets are renewed: how many periods have begun. All other figures are about this one."""
    days_until_renewal: float | None
    keep_days: float | None
    """How long a record takes part at most."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


def forecast(stream: Stream, daily: float | None = None) -> Forecast:
    """What happens if queries stay as they were, the noise stays as it is now, and `daily` queries come each day.

    >>> forecast(Stream(answered=500, asked=500, asked_share=1.0, left=0.8, price=0.001)).until_half
    400
    """
    per_query = None if stream.price is None else stream.price * stream.asked_share
    left, times, paced = stream.left, stream.times, stream.times.paced < 1.0
    left_by_now = None if left is None else min(left, max(times.paced - 1.0 + left, 0.0))
    until_half = until_used_up = until_pace = a_day = half = used_up = None
    if left is not None and left_by_now is not None and per_query:
        until_half, until_used_up = floor(left / 2.0 / per_query + 1e-9), floor(left / per_query + 1e-9)
        if paced and times.pace is not None:
            until_pace, a_day = floor(left_by_now / per_query + 1e-9), floor(1.0 / times.pace / per_query + 1e-9)
        if daily:
            half, used_up = (times.until(left, part, daily * per_query) for part in (left / 2.0, 0.0))
    return Forecast(
        stream.answered,
        stream.asked_share,
        stream.left,
        until_half,
        until_used_up,
        None if stream.planned is None else max(stream.planned - stream.answered, 0),
        None if stream.models is None else stream.models.right,
        None if stream.models is None else stream.models.error,
        not stream.alone,
        half,
        used_up,
        left_by_now,
        until_pace,
        a_day,
        None if times.renew is None else times.begun,
        times.renewed_in,
        times.keep,
    )


def price_of_question(
    crowd: Nearness, *, budget: float, sigma2: float, records: float, contrast: float = 1.0, sigma1: float | None = None
) -> float:
    """The expected charge of an average person for one question, as a share of B.

    Of n people, s·n are near. Each of them pays κ²/(2·σ2²·K) for voting, and K is about s·n. Averaged over all n people
    this is κ²/(2·σ2²·n), for any s. Being counted costs each person near 1/(2·σ1²).

    >>> round(price_of_question(Nearness(0.03, 0.5), budget=0.05, sigma2=1.0, records=5000), 6)
    0.001
    """
    counted = 0.0 if sigma1 is None else crowd.near / (2.0 * sigma1 * sigma1)
    return (counted + contrast * crowd.kappa2 / (2.0 * sigma2 * sigma2 * records)) / budget


def advised_stream(adviser: Adviser, lately: FloatArray) -> Stream:
    """The input of a forecast from an adviser.

    `lately` says for each of the latest answers whether people were asked.
    """
    terms, asked = adviser.terms, adviser.asked
    rate = float(np.mean(lately)) if len(lately) else 1.0
    kappa = adviser.kappa
    price = price_of_question(
        Nearness(0.0, kappa * kappa),  # only a few answers release their counts, which adds next to nothing
        budget=terms.budget,
        sigma2=adviser.sigma2(),
        records=adviser.density.records,
        contrast=adviser.contrast,
    )
    # With an automatic σ2 the number of records cancels out of the price. With another σ2 it must be known.
    known = terms.sigma2 is None or bool(asked)
    return Stream(
        adviser.answered,
        asked,
        rate,
        max(adviser.left, 0.0),
        price if known else None,
        terms.max_queries,
        models_of(None if adviser.model.shown is None else adviser.model.shown.card),
        alone=True,
    )


def models_of(card: Card | NumberCard | None) -> Models | None:
    """The accuracy of the model, by its report card. None before the first card, and if records say numbers."""
    return None if not isinstance(card, Card) else Models(card.overall, card.overall_error)

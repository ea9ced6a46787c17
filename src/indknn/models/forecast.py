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
from indknn.models.card import Card
from indknn.types import FloatArray


@dataclass(frozen=True)
class Crowd:
    """Estimates from public queries: the share of pairs within τ, and the mean κ² of those pairs."""

    near: float
    kappa2: float


@dataclass(frozen=True)
class Models:
    """How often the models are right about the records, by the latest report card, and the standard error of that."""

    right: float
    error: float


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


@dataclass(frozen=True)
class Forecast:
    """Numbers of further queries. None: nothing public tells it, or it never happens."""

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

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


def forecast(stream: Stream) -> Forecast:
    """What happens if queries stay as they were and the noise stays as it is now.

    >>> forecast(Stream(answered=500, asked=500, asked_share=1.0, left=0.8, price=0.001)).until_half
    400
    """
    per_query = None if stream.price is None else stream.price * stream.asked_share
    until_half = until_used_up = None
    if stream.left is not None and per_query is not None and per_query > 0:
        until_half = floor(stream.left / 2.0 / per_query + 1e-9)
        until_used_up = floor(stream.left / per_query + 1e-9)
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
    )


def price_of_question(
    crowd: Crowd, *, budget: float, sigma2: float, records: float, contrast: float = 1.0, sigma1: float | None = None
) -> float:
    """The expected charge of an average person for one question, as a share of B.

    Of n people, s·n are near. Each of them pays κ²/(2·σ2²·K) for voting, and K is about s·n. Averaged over all n people
    this is κ²/(2·σ2²·n), for any s. Being counted costs each person near 1/(2·σ1²).

    >>> round(price_of_question(Crowd(0.03, 0.5), budget=0.05, sigma2=1.0, records=5000), 6)
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
    contrast = 1.0 - 1.0 / max(terms.n_classes, 2)
    price = price_of_question(
        Crowd(0.0, kappa * kappa),  # only a few answers release their counts, which adds next to nothing
        budget=terms.budget,
        sigma2=adviser.sigma2(),
        records=adviser.density.records,
        contrast=contrast,
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


def models_of(card: Card | None) -> Models | None:
    """The accuracy of the model, by its report card. None before the first card."""
    return None if card is None else Models(card.overall, card.overall_error)

"""What can be said about a query from what was released before, without new charges.

All code in here sees only public things: queries, released answers and sums, and their known noise. It is
post-processing. It costs nobody anything and may use floating point freely.

May import: `settings` and below, but never records, ledgers, the mechanism or noise.
"""

from __future__ import annotations

from indknn.models import adviser, shared_model
from indknn.models.adviser import Adviser
from indknn.models.feature_map import numbers_in, widths_in
from indknn.models.numbers import NumberAdviser, NumberModel
from indknn.models.shared_model import SharedModel
from indknn.settings import Settings
from indknn.types import Scope

__all__ = ["SharedModel", "new_adviser", "new_model"]


def new_model(settings: Settings) -> SharedModel:
    """The shared model as it is before any release."""
    classes, most = max(len(settings.class_array), 1), settings.max_records_per_round
    spans, widths = numbers_in(settings.schema), widths_in(settings.schema)
    terms = shared_model.Terms(
        settings.n_features, classes, settings.shared_budget, most_records=most, numbers=spans, widths=widths
    )
    return NumberModel(terms) if settings.numeric else SharedModel(terms)


def new_adviser(settings: Settings, model: SharedModel, analyst: Scope = None) -> Adviser:
    """The adviser of an analyst to whom nothing was released yet."""
    seen = settings.seen_by(analyst)
    if settings.advised and not seen.advised:  # only votes: the model stays as it is before any release
        model = new_model(settings)
    terms = adviser.AdviserTerms(
        seen.n_features,
        max(len(seen.class_array), 1),
        seen.budget - seen.shared_budget,
        seen.max_queries,
        seen.sigma2,
        seen.tau,
        seen.expected_records,
    )
    return (NumberAdviser if seen.numeric else Adviser)(terms, seen.kernel_, model)

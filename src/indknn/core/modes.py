"""The names of the ways to answer, and which of them go together."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast, get_args

from indknn.core.statistics import MAX_FEATURES
from indknn.errors import InvalidInputError

Reuse: TypeAlias = Literal["none", "labels", "student"]
Prior: TypeAlias = Literal["none", "statistics"]

Derived: TypeAlias = Literal["keep", "purge"]
"""What becomes of what was released while somebody was here, when they are forgotten."""
RECEIPT = {
    "keep": "answers and statistics released before are kept: they are differentially private",
    "purge": "answers and statistics released before were purged, and will be made anew from those who remain",
}


def as_derived(value: Any) -> Derived:
    """A checked name of what becomes of what was derived."""
    return cast(Derived, _one_of("derived", value, Derived))


def default_prior(reuse: Any) -> Prior:
    """The prior of somebody who did not say: there is one where a student makes the most of it."""
    return "statistics" if reuse == "student" else "none"


def check_modes(reuse: Reuse, prior: Prior, prior_share: float, n_features: int) -> None:
    """Refuse ways to answer that do not go together, naming what does."""
    _one_of("reuse", reuse, Reuse)
    _one_of("prior", prior, Prior)
    if not 0.0 < prior_share < 1.0:
        raise InvalidInputError(f"prior_share must be above 0 and below 1, got {prior_share!r}")
    if prior == "statistics" and reuse == "labels":
        raise InvalidInputError(f"prior='statistics' goes with reuse='none' or 'student', got {reuse!r}")
    if n_features > MAX_FEATURES and (prior == "statistics" or reuse == "student"):
        raise InvalidInputError(
            f"statistics and a student take at most {MAX_FEATURES} features, got {n_features}; "
            "use reuse='none' and prior='none'"
        )


def _one_of(name: str, value: Any, names: Any) -> Any:
    if value not in get_args(names):
        raise InvalidInputError(f"{name} must be one of {', '.join(map(repr, get_args(names)))}, got {value!r}")
    return value

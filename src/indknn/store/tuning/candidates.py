"""The candidates that are tried: a few modes, each with a few parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["algorithm3", "model"]


@dataclass(frozen=True)
class Candidate:
    """A mode with parameters.

    `share` is the share of pairs that sets τ (None: the store chooses from its own queries). `factor` scales σ2.
    """

    mode: Mode
    share: float | None = None
    factor: float = 1.0
    prior_share: float | None = None

    def describe(self) -> str:
        """In words.

        >>> Candidate("algorithm3", 0.03, 2.0).describe()
        'Algorithm 3, 3% near, sigma2 x 2'
        """
        near = "" if self.share is None else f", {100 * self.share:g}% near"
        if self.mode == "algorithm3":
            return f"Algorithm 3{near}, sigma2 x {self.factor:g}"
        return f"shared model for {self.prior_share or 0.0:.0%} of B{near}"


USUAL = (
    *(Candidate("algorithm3", share, factor) for share in (0.015, 0.03, 0.06) for factor in (0.25, 0.5, 1.0)),
    *(Candidate("model", None, prior_share=share) for share in (0.6, 0.9)),
)

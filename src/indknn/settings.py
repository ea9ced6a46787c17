"""What is public and fixed about a store, and what follows from it. See `IndKNNClassifier` for what each means."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core import accounting
from indknn.core.calibrate import COUNT_EVERY, ENDLESS, sigma1_for, sigma2_for
from indknn.core.inputs import encode_labels
from indknn.core.kernels import Kernel, make_kernel
from indknn.core.mechanism import Plan
from indknn.core.modes import Prior, Reuse, check_modes
from indknn.core.quantise import quantise
from indknn.errors import InvalidInputError
from indknn.types import Accountant, IntArray, KernelName, Vectors

MAX_CLASSES = (1 << 16) - 1


@dataclass(frozen=True)
class Settings:
    """What is public and fixed about a store. See `IndKNNClassifier` for what each means."""

    n_features: int
    classes: tuple[Any, ...]
    epsilon: float = 1.0
    delta: float = 1e-5
    max_queries: int | None = 1000
    kernel: KernelName = "cosine"
    tau: float | None = None
    sigma2: float | None = None
    bandwidth: float | None = None
    accountant: Accountant = "gdp"
    index: str = "exact"
    index_options: dict[str, Any] = field(default_factory=dict)
    reuse: Reuse = "none"
    center: tuple[float, ...] | None = None
    normalize: bool = True
    max_records_per_query: int | None = None
    free_repeats: bool = True
    global_epsilon: float | None = None
    prior: Prior = "none"
    prior_share: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if len(self.classes) > MAX_CLASSES:
            raise InvalidInputError(f"there may be at most {MAX_CLASSES} classes, got {len(self.classes)}")
        check_modes(self.reuse, self.prior, self.prior_share, self.n_features)

    @property
    def advised(self) -> bool:
        """Whether releases answer as well: a student, a prior or both."""
        return self.reuse == "student" or self.prior != "none"

    @cached_property
    def budget(self) -> float:
        """B, what every person may spend with one analyst."""
        return accounting.budget(self.epsilon, self.delta, self.accountant)

    @cached_property
    def global_budget(self) -> float | None:
        """What every person may spend with all analysts together, if that is bounded."""
        if self.global_epsilon is None:
            return None
        return accounting.budget(self.global_epsilon, self.delta, self.accountant)

    @property
    def sigma1_(self) -> float:
        """The noise on the count."""
        planned = self.max_queries or ENDLESS
        return sigma1_for(self.budget, max(planned // COUNT_EVERY, 100) if self.advised else planned)

    @property
    def sigma2_(self) -> float:
        """The noise on the votes, given or derived."""
        if self.sigma2 is not None:
            return float(self.sigma2)
        return sigma2_for(self.budget, self.max_queries or ENDLESS)

    @cached_property
    def class_array(self) -> npt.NDArray[Any]:
        """The labels, sorted."""
        return np.unique(np.array(self.classes))

    @cached_property
    def kernel_(self) -> Kernel:
        """The kernel."""
        return make_kernel(self.kernel, self.bandwidth, normalize=self.normalize)

    def plan(self, tau: float) -> Plan:
        """The plan for a threshold."""
        classes = max(len(self.class_array), 1)  # none are known before the first records of a draft
        return Plan(tau, self.sigma1_, self.sigma2_, classes, self.max_records_per_query, contrast=self.advised)

    def quantise(self, X: npt.ArrayLike, what: str) -> Vectors:
        """Raw rows as the store sees them."""
        center = None if self.center is None else np.array(self.center, dtype=np.float64)
        vectors = quantise(X, center, what=what)
        if vectors.values.shape[1] != self.n_features:
            width = vectors.values.shape[1]
            raise InvalidInputError(f"{what} must have {self.n_features} features per row, got {width}")
        return vectors

    def prepare(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Vectors, IntArray]:
        """Raw records as the store keeps them, or an error that names what is wrong."""
        vectors, labels = self.quantise(X, "X"), encode_labels(np.asarray(y), self.class_array)
        if len(labels) != len(vectors):
            raise InvalidInputError(f"y must have one label per row: {len(vectors)} rows, got {len(labels)}")
        return vectors, labels


def index_options(index: str, n_tables: int = 30, n_bits: int | None = None, seed: int = 0) -> dict[str, Any]:
    """What an index of this name is told of these; the rest does not concern it.

    >>> index_options("lsh"), index_options("exact")
    ({'seed': 0, 'n_tables': 30, 'n_bits': 8}, {})
    """
    if index == "lsh":
        return {"seed": int(seed), "n_tables": int(n_tables), "n_bits": int(8 if n_bits is None else n_bits)}
    if index == "sketch":
        return {"seed": int(seed), "n_bits": int(512 if n_bits is None else n_bits)}
    return {}

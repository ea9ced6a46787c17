"""The parameters of both estimators, declared once.

scikit-learn wants a signature that names every parameter. It is made from what is declared here, with the defaults of
the settings.
"""

from __future__ import annotations

from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from indknn.core.inputs import numpydoc
from indknn.settings import PARAMETERS


class Parameters(TypedDict, total=False):
    """The parameters that both estimators take by name. Their defaults are those of the settings, or else None."""

    max_queries: int | None
    kernel: str
    tau: float | None
    sigma2: float | None
    bandwidth: float | None
    accountant: str
    index: str
    reuse: str | None
    mode: str | None
    model_share: float | None
    expected_records: int | None
    center: npt.ArrayLike | None
    random_state: int | np.random.Generator | np.random.RandomState | None
    normalize: bool
    max_records_per_query: int | None
    max_records_per_round: int
    free_repeats: bool
    global_epsilon: float | None
    keep_days: int | None
    pace_days: int | None
    renew_days: int | None
    i_understand: str | None
    n_tables: int
    n_bits: int | None
    index_seed: int
    store: str | Path | None
    public: Any
    schema: Any
    shards: Any
    analysts: Any
    verbose: bool | None


class ClassifierParameters(Parameters, total=False):
    """Those of the classifier."""

    classes: npt.ArrayLike | None
    class_weight: Any
    min_confidence: float | None


class RegressorParameters(Parameters, total=False):
    """Those of the regressor."""

    bounds: tuple[float, float] | None


def declared(kind: Any, parameters: type, *others: str) -> None:
    """Write the parameters into the signature and the docstring of an estimator, but not these others."""
    about = {name: p for name, p in PARAMETERS.items() if name not in others}
    own = [p for p in signature(kind.__init__).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    for name, annotation in parameters.__annotations__.items():
        default, text = about[name].default if name in about else None, getattr(annotation, "__forward_arg__", "")
        own.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=text))
    kind.__init__.__signature__ = Signature(own)  # scikit-learn reads it
    kind._defaults = {p.name: p.default for p in own[1:]}
    kind.__doc__ = cleandoc(kind.__doc__ or "").replace("{parameters}", numpydoc(about))

"""A step of a scikit-learn pipeline that encodes tables with a schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin

from indknn.tables.schema import Schema, read_schema
from indknn.types import FloatArray


class TableEncoder(TransformerMixin, BaseEstimator):
    """Turns tables into vectors with a public schema. `fit` ignores its rows, so they may be private.

    >>> from indknn.tables import Number, Schema, TableEncoder
    >>> encoder = TableEncoder(Schema({"age": Number(bounds=(0, 100), knots=(50,))}))
    >>> encoder.fit_transform({"age": [20, 70]}).shape
    (2, 4)
    """

    def __init__(self, schema: Schema | dict[str, Any] | str | Path):
        self.schema = schema

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Read the schema. Nothing is learned from X."""
        self.schema_ = read_schema(self.schema)
        return self

    def transform(self, X: Any) -> FloatArray:
        """The rows of a table as vectors."""
        return self._schema.encode(self._schema.split(X).features)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """A name for every coordinate."""
        return np.array(self._schema.places, dtype=object)

    @property
    def _schema(self) -> Schema:
        return self.schema_ if hasattr(self, "schema_") else read_schema(self.schema)

    def __sklearn_is_fitted__(self) -> bool:
        return True  # nothing has to be fitted

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        return tags

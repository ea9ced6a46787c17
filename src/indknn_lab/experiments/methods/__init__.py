"""How each method is tuned and measured. Each method is a class, and all are in `METHODS`."""

from indknn_lab.experiments.methods import endless, queries  # noqa: F401
from indknn_lab.experiments.methods.base import METHODS, Method, Tuned, method_of

__all__ = ["METHODS", "Method", "Tuned", "method_of"]

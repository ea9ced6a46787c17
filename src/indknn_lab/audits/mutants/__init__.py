"""Deliberately broken variants of the product. Each is in place inside a `with`, and each must be caught.

Most are mistakes that were really made, in the paper's text, in its authors' code, or in known libraries.
"""

from indknn_lab.audits.mutants import mechanism, shared, stores  # noqa: F401 - they declare them, in this order
from indknn_lab.audits.patches import MUTANTS

__all__ = ["MUTANTS"]

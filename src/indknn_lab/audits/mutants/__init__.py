"""Deliberately broken variants of the product. Each is in place inside a `with`, and each must be caught.

Most are mistakes that were really made, in the paper's text, in its authors' code, or in known libraries.
"""

from indknn_lab.audits.mutants import beside, budgets, mechanism, numbers, retention, serving, shared

MUTANTS = [
    *(*mechanism.MUTANTS, *shared.MUTANTS, *serving.MUTANTS, *beside.MUTANTS),
    *(*retention.MUTANTS, *budgets.MUTANTS, *numbers.MUTANTS),
]

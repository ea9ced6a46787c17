"""Deliberately broken variants of the product, in place for the length of a `with`. Each of them must be caught.

Most are mistakes that were really made: in the paper's text, in its authors' code, or in known libraries.
"""

from indknn_lab.audits.mutants import mechanism, serving, shared

MUTANTS = [*mechanism.MUTANTS, *shared.MUTANTS, *serving.MUTANTS]

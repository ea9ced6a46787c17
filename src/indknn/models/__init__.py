"""What can be said about a query from what was already released: a prior, a student, and whom to believe.

Everything in here sees public things only: queries, released answers and sums, and their known noise. It is
post-processing, costs nobody anything, and may use floating point as it likes.

May import: `core` and below, but never records, ledgers, the mechanism or noise.
"""

from indknn.models.shared_model import SharedModel

__all__ = ["SharedModel"]

"""What can be said about a query from what was released before, without new charges.

All code in here sees only public things: queries, released answers and sums, and their known noise. It is
post-processing. It costs nobody anything and may use floating point freely.

May import: `core` and below, but never records, ledgers, the mechanism or noise.
"""

from indknn.models.shared_model import SharedModel

__all__ = ["SharedModel"]

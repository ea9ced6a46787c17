"""A durable store: records, people's ledgers and the transcript in one file that loses nothing.

May import: `engine` and below. The only package of the product that writes files about people.
"""

from indknn.store.store import Store

__all__ = ["Store"]

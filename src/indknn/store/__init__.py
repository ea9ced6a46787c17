"""A durable store: records, people's ledgers and the transcript, in a file or a database.

May import: `engine` and below. This is the only package of the product that writes files about people.
"""

from indknn.store.store import Store

__all__ = ["Store"]

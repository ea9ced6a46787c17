"""A durable store: records, people's ledgers and the transcript in one file that loses nothing."""

from indknn.store.store import Store

__all__ = ["Store"]

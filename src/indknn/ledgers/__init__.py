"""Ledgers know owners and what each has spent, and nothing of records."""

from indknn.ledgers.base import Ledger, Scope
from indknn.ledgers.memory import MemoryLedger

__all__ = ["Ledger", "MemoryLedger", "Scope"]

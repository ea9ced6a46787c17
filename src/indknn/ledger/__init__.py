"""Ledgers: who has spent how much. They know nothing about records.

May import: `core` and below.
"""

from indknn.ledger.base import SHARED, Ledger, Scope, checked_analyst
from indknn.ledger.memory import MemoryLedger

__all__ = ["SHARED", "Ledger", "MemoryLedger", "Scope", "checked_analyst"]

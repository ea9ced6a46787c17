"""The ledger: who has spent how much. It knows nothing about records.

An owner is a person (or whatever the promise is made to), named by a text (rule 13). While an owner has records, they
have a slot, a small integer. What an owner has spent is kept per scope. If there is a *global* budget, it bounds all
scopes together, and every charge counts against it too.

The law: what an owner has spent in a scope never falls and never exceeds the budget, whatever happens to their records
(rule 4). All amounts are integers in the units of `accounting`.

May import: `core` and below.
"""

from indknn.ledger.memory import MemoryLedger
from indknn.types import SHARED, Scope

__all__ = ["SHARED", "MemoryLedger", "Scope"]

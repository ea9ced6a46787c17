"""The records of people: how they are stored and searched, and the shard that connects them to a ledger.

May import: `ledger`, `core` and below. Everything that comes out of here is private until noise is added.
"""

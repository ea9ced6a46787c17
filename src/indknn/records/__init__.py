"""The records of people: where they lie, how they are searched, and the shard that ties them to a ledger.

May import: `ledger`, `core` and below. Whatever comes out of here is private until noise was added.
"""

"""The road from queries to labels, and what was released on the way.

May import: `models`, `records`, `ledger`, `core` and below. Knows no files.
"""

"""From queries to labels: who is asked, what is charged, and what is released.

May import: `models`, `records`, `ledger`, `core` and below. Knows no files.
"""

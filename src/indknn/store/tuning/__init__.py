"""Choosing parameters without leaking: on public data for nothing, or by queries that are charged as all are."""

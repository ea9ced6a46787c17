"""Choosing parameters without leaking: free on public data, or with queries that are charged like all others."""

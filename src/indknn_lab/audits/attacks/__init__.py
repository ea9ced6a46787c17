"""Attacks on what leaves: who is a member, what floating point betrays, what the clock betrays."""

"""Attacks on the answers: membership inference, and leaks through floating point and through timing."""

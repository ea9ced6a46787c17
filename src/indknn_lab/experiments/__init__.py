"""Computes every table and figure of the paper. It reads a configuration and writes result files. It draws nothing."""

"""The mathematics: mechanism, accounting, noise, kernels, quantising, statistics. Pure functions over arrays.

May import: `types`, `errors`. Knows no owner names, no files and no settings.
"""

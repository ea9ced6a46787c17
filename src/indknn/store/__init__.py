"""A durable store: records, people's ledgers and the transcript, in a file or a database.

May import: `engine` and below. This is the only package of the product that writes files about people.
"""

import sys

from indknn.errors import IndKNNError

if sys.platform == "win32":  # locks of files are POSIX's
    raise IndKNNError("a durable store needs Linux, macOS or WSL; on Windows, use the estimator or a server's client")

from indknn.store.store import Store

__all__ = ["Store"]

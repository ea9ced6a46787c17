"""Every exception and warning of the package, in one tree.

    IndKNNError
    ├── InvalidInputError (also a ValueError)   something the caller gave is not allowed
    │   ├── UnknownOwnerError                   this store never had such an owner
    │   └── RequestConflictError                a request id was used before for other queries
    ├── PrivacyError                            what was asked for would break the promise
    ├── LedgerError                             the ledger's own invariant failed; nothing was released
    └── StoreError                              the file cannot be read, written or trusted
        ├── StoreLockedError                    another process has it
        ├── FencedError                         another process has taken it over; this one must stop
        ├── StaleStoreError                     it is older than its witness or head: something is missing
        ├── DamagedStoreError                   its contents are not what its audit trail says
        └── ShardError                          a shard of a cluster is gone, or has another coordinator

    PrivacyWarning (a UserWarning)              allowed, but it weakens or removes privacy

All messages have one form: what was wrong, which value, what is allowed. Messages are for the curator, who holds the
data. Never show them to analysts.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any


class IndKNNError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInputError(IndKNNError, ValueError):
    """Something the caller gave is not allowed. Nothing was changed, and nobody was charged."""


class UnknownOwnerError(InvalidInputError):
    """An owner that this store has never seen."""


class RequestConflictError(InvalidInputError):
    """A request id that was used before for other queries."""


class PrivacyError(IndKNNError):
    """The operation was refused because it would break the privacy promise."""


class LedgerError(IndKNNError):
    """A charge did not fit the ledger. It is raised before anything is released."""


class StoreError(IndKNNError):
    """The store file cannot be read, written or trusted. What was not yet durable was not answered."""


class StoreLockedError(StoreError):
    """Another process has the store open."""


class FencedError(StoreError):
    """Another process has taken the store over. This one can write nothing any more, and must stop."""


class StaleStoreError(StoreError):
    """The store is not as far as its witness or its head: budgets may have been spent that it does not know."""


class DamagedStoreError(StoreError):
    """The contents of the store are not what its audit trail says, or cannot be read."""


class ShardError(StoreError):
    """A shard of a cluster is gone, does not answer, or has another coordinator. Nothing was answered."""


class PrivacyWarning(UserWarning):
    """The operation is allowed, but it weakens or removes privacy."""


def meant(word: str, known: Iterable[object]) -> str:
    """A question that follows an unknown word: the known one that is most like it. Nothing if none is like it.

    >>> meant("alcie", ["bob", "alice"]), meant("Alice", ["alice"]), meant("eve", ["alice"])
    ("; did you mean 'alice'?", "; did you mean 'alice'?", '')
    """
    words = {str(one).casefold(): str(one) for one in known}
    near = get_close_matches(str(word).casefold(), words, n=1)
    return f"; did you mean {words[near[0]]!r}?" if near else ""


def missing(path: Path, otherwise: str = "") -> str:
    """The words for a file that is not there: one with a name like it in the same folder, or what to do `otherwise`."""
    beside = (one.name for one in path.parent.iterdir()) if path.parent.is_dir() else ()
    return f"{path} does not exist{meant(path.name, beside) or otherwise}"


def to_install(package: str, extra: str, what: str = "this") -> str:
    """The words for a package that is missing.

    >>> to_install("pyarrow", "tables", "a parquet file")
    "a parquet file needs 'pyarrow': pip install 'indknn[tables]'"
    """
    return f"{what} needs {package!r}: pip install 'indknn[{extra}]'"


def needs(module: str, extra: str, what: str = "this") -> Any:
    """Import a module that is not always installed. If it is missing, the error says which extra brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        package = (missing.name or module).partition(".")[0]
        if package == "indknn":
            raise
        raise InvalidInputError(to_install(package, extra, what)) from None

"""Parts of the product replaced for the length of a `with`. The product itself has no hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

Replacement: TypeAlias = tuple[Any, str, Any]
"""A module or class, the name of one of its attributes, and what takes its place."""


@contextmanager
def patched(replacements: Iterable[Replacement]) -> Iterator[None]:
    """All replacements are in place inside the `with`, and none after it."""
    with ExitStack() as undo:
        for where, name, new in replacements:
            undo.callback(setattr, where, name, getattr(where, name))
            setattr(where, name, new)
        yield


@dataclass(frozen=True)
class Mutant:
    """A broken variant: what it is called, what is wrong with it, and how to put it in place.

    A check must see every mutant. `probes` names the statistical audits that must see it as well.
    """

    name: str
    wrong: str
    replacements: Callable[[], list[Replacement]]
    probes: tuple[str, ...] = ()

    def __call__(self) -> AbstractContextManager[None]:
        """In place within the `with`, gone after it."""
        return patched(self.replacements())

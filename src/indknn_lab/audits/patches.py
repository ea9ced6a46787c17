"""Replaces parts of the product inside a `with`. The product itself has no hooks for this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

Replacement: TypeAlias = tuple[Any, str, Any]
"""A module or class, the name of one of its attributes, and the replacement."""


@contextmanager
def patched(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Put all replacements in place inside the `with`, and undo them after it."""
    with ExitStack() as undo:
        for where, name, new in replacements:
            undo.callback(_undo(where, name))
            setattr(where, name, new)
        yield


def _undo(where: Any, name: str) -> Callable[[], None]:
    """Puts back what is there, as it is: a static method as such, and nothing where it was inherited."""
    own = vars(where)
    return partial(setattr, where, name, own[name]) if name in own else partial(delattr, where, name)


@dataclass(frozen=True)
class Mutant:
    """A broken variant: its name, what is wrong with it, and how to put it in place.

    At least one check must catch every mutant. `probes` names the statistical audits that must also catch it.
    """

    name: str
    wrong: str
    replacements: Callable[[], list[Replacement]]
    probes: tuple[str, ...] = ()

    def __call__(self) -> AbstractContextManager[None]:
        """Put the mutant in place inside the `with`, and remove it after it."""
        return patched(self.replacements())

"""Replaces parts of the product inside a `with`. The product itself has no hooks for this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeAlias, TypeVar

from indknn.core import mechanism

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


MUTANTS: list[Mutant] = []
"""All mutants of `mutants/`, in the order in which they are declared."""
New = TypeVar("New", bound=Callable[..., Any])
_IN_C = {(mechanism, name) for name in ("count", "settle", "charge_units", "_squared_norms")}
"""What C does in one pass. That is switched off for mutants of these functions."""


def mutant(
    name: str, wrong: str, *places: tuple[Any, str], also: Iterable[Replacement] = (), probes: tuple[str, ...] = ()
) -> Callable[[New], New]:
    """Declare a mutant: a function that is called instead of what is at these places, which is its first argument."""

    def declare(new: New) -> New:
        in_numpy = [(mechanism, "_votes", None)] if _IN_C & set(places) else []
        made = Mutant(name, wrong, lambda: [*in_numpy, *also, *(_instead(*place, new) for place in places)], probes)
        MUTANTS.append(made)
        return new

    return declare


def _instead(where: Any, name: str, new: Callable[..., Any]) -> Replacement:
    original = getattr(where, name)

    @wraps(original)
    def called(*arguments: Any, **named: Any) -> Any:
        return new(original, *arguments, **named)

    return where, name, staticmethod(called) if isinstance(vars(where).get(name), staticmethod) else called

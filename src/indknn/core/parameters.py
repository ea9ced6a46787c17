"""How a parameter is described: its help, its default, the allowed values, and when it is fixed.

One description serves all interfaces. It checks values from Python, from the command line and from files, and the
documentation of all of them is written from it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from indknn.errors import InvalidInputError

AT_CREATION = "when the store is made"
_LIMITS = {"above": operator.gt, "at_least": operator.ge, "at_most": operator.le, "below": operator.lt}


@dataclass(frozen=True)
class Parameter:
    """The description of one parameter.

    >>> Parameter("A share.", 0.5, float, limits={"above": 0, "below": 1}).check("share", 7)
    Traceback (most recent call last):
    ...
    indknn.errors.InvalidInputError: share must be above 0 and below 1, got 7
    """

    help: str
    default: Any
    kind: type
    """float, int, bool, str or tuple. The contents of a tuple are checked elsewhere."""
    choices: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    none: str = ""
    """What None means. A parameter without this text does not take None."""
    fixed: str = AT_CREATION
    """When the operator of a store has to decide. Nobody changes a parameter after that."""

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.kind in {bool, tuple}:
            return "True or False" if self.kind is bool else "an array"
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        limits = " and ".join(f"{word.replace('_', ' ')} {limit:.12g}" for word, limit in self.limits.items())
        return ", ".join(filter(None, ["a whole number" if self.kind is int else "", limits]))

    def check(self, name: str, value: Any) -> Any:
        """The value, converted to its kind. An error names the parameter, what is allowed and what was given."""
        if (value is None and self.none) or self.kind is tuple:
            return value
        accepted = {str: str, bool: bool | np.bool_, int: Integral, float: Real}[self.kind]
        right = isinstance(value, accepted) and (self.kind is bool or not isinstance(value, bool))
        # Checked before the conversion, which may overflow, and after it, because it may round to a limit.
        if not (right and self._holds(value) and self._holds(self.kind(value))):
            raise InvalidInputError(f"{name} must be {self.allowed}, got {value!r}")
        return self.kind(value)

    def _holds(self, value: Any) -> bool:
        inside = all(_LIMITS[word](value, limit) for word, limit in self.limits.items())  # NaN is not inside
        return inside and (not self.choices or value in self.choices)


def parameter(
    help: str,  # noqa: A002
    default: Any = None,
    *,
    required: bool = False,
    none: str = "",
    fixed: str = AT_CREATION,
    **limits: float,
) -> Any:
    """A dataclass field with a description; the kind and the choices follow from its type hint."""
    about = {"help": help, "default": default, "limits": limits, "none": none, "fixed": fixed}
    return field(metadata=about) if required else field(default=default, metadata=about)


@cache
def described(cls: type) -> dict[str, Parameter]:
    """The descriptions of a dataclass whose fields were made by `parameter`."""
    hints, found = get_type_hints(cls), {}
    for one in fields(cls):
        hint = hints[one.name]
        if isinstance(hint, UnionType):
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if one.metadata:
            kind = str if choices else get_origin(hint) or hint
            found[one.name] = Parameter(kind=kind, choices=choices, **one.metadata)
    return found


def check_fields(instance: object) -> None:
    """Check every described field of a frozen dataclass, and convert each value to its kind."""
    for name, about in described(type(instance)).items():  # type: ignore[arg-type]  # a class is hashable
        object.__setattr__(instance, name, about.check(name, getattr(instance, name)))


def numpydoc(parameters: Mapping[str, Parameter]) -> str:
    """The parameters as the section of a docstring.

    >>> print(numpydoc({"share": Parameter("A share.", 0.5, float, limits={"above": 0, "below": 1})}))
    share : float above 0 and below 1 (default 0.5)
        A share.
    """
    lines = []
    for name, p in parameters.items():
        kind = f"float {p.allowed}" if p.kind is float else p.allowed
        about = f"{p.help} None: {p.none}." if p.none else p.help
        lines.append(f"{name} : {kind}{', or None' if p.none else ''} (default {p.default!r})")
        lines.append(fill(about, 110, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)

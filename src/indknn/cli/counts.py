"""A number of queries to plan for, or none."""

from __future__ import annotations

from typing import Any

import click


class Queries(click.ParamType[int | None]):
    """A positive integer, or the word none: plan for no number."""

    name = "INTEGER|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """What was typed."""
        if value is None or value == "none":
            return None
        text = str(value).replace(",", "")
        if not text.isdigit() or int(text) < 1:
            self.fail(f"it must be a number of at least 1, or none, got {value!r}", param, ctx)
        return int(text)


QUERIES = Queries()

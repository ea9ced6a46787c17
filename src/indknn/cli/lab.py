"""Commands for research, which `indknn_lab` brings along as entry points of the group `indknn.commands`.

Nothing in `indknn` imports `indknn_lab`. Where one of its commands cannot be loaded, it says what to install.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

from indknn.errors import InvalidInputError

GROUP = "indknn.commands"


def lab_commands() -> list[click.Command]:
    """The commands that are registered, or stand-ins that tell how to get them."""
    return [_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]


def _load(point: EntryPoint) -> click.Command:
    try:
        command: click.Command = point.load()
    except ModuleNotFoundError as missing:
        return _absent(point.name, str(missing.name))
    return command


def _absent(name: str, module: str) -> click.Command:
    @click.command(name, help="Needs: pip install 'indknn[lab]'.", context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1)
    def stand_in(words: tuple[str, ...]) -> None:
        raise InvalidInputError(f"indknn {name} needs {module!r}: pip install 'indknn[lab]'")

    return stand_in

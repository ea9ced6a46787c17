"""Commands for research. `indknn_lab` provides them as entry points of the group `indknn.commands`.

Nothing in `indknn` imports `indknn_lab`. A command is loaded only when it is called, so it does not slow down the
others. If it cannot be loaded, the error says what to install.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import click

from indknn.errors import InvalidInputError

GROUP = "indknn.commands"


class WithLab(click.Group):
    """A group that also has the commands of the lab."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*super().list_commands(ctx), *entry_points(group=GROUP).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name, from `indknn` or from the lab."""
        found = super().get_command(ctx, cmd_name)
        for point in entry_points(group=GROUP, name=cmd_name) if found is None else ():
            try:
                command: click.Command = point.load()
            except ModuleNotFoundError as missing:
                return _stand_in(cmd_name, str(missing.name))
            return command
        return found


def _stand_in(name: str, module: str) -> click.Command:
    def refuse(**_: Any) -> None:
        raise InvalidInputError(f"indknn {name} needs {module!r}: pip install 'indknn[lab]'")

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True}
    return click.Command(name, settings, refuse, [words], help="Needs: pip install 'indknn[lab]'.")

"""The `indknn` command. This file only starts the program, or says what to install if a package is missing."""

from __future__ import annotations

import sys

from indknn.errors import to_install


def main() -> None:
    """Run the command line."""
    try:
        from indknn.cli.app import app  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        if missing.name not in {"click", "rich"}:
            raise
        sys.exit(to_install(missing.name, "cli", "the indknn command"))
    app()

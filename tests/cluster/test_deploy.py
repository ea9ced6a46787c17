"""The files under deploy/cluster can be read, and the commands in them exist."""

import shlex
from pathlib import Path

import pytest

from indknn.cli.app import app

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "deploy" / "cluster"


def commands():
    """The arguments of every call of indknn."""
    parts = list(yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text()))
    containers = [
        one for part in parts if part["kind"] == "StatefulSet" for one in part["spec"]["template"]["spec"]["containers"]
    ]
    texts = [container["args"][0] for container in containers]
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"].values()
    texts += [one["command"] if isinstance(one["command"], str) else one["command"][-1] for one in services]
    return [shlex.split(text.partition("indknn ")[2]) for text in texts]


def test_every_command_is_one_that_indknn_takes():
    ours = commands()
    assert len(ours) == 5
    for arguments in ours:
        command, rest = app, arguments
        while hasattr(command, "commands"):
            command, rest = command.get_command(None, rest[0]), rest[1:]
        known = {name for option in command.params for name in option.opts}
        assert {word for word in rest if word.startswith("--")} <= known

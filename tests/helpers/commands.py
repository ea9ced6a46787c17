"""A command of the program, as people type it."""

from inspect import signature

from click.testing import CliRunner

from indknn.cli.app import app


def run(*words, code=None, given=None):
    """Run a command and return what came of it. It must end by itself, with this code if one is given.

    stdout and stderr are apart. Before click 8.2 one has to ask for that.
    """
    runner = CliRunner(**dict.fromkeys(signature(CliRunner).parameters.keys() & {"mix_stderr"}, False))
    result = runner.invoke(app, [str(word) for word in words], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert code is None or result.exit_code == code, result.output
    return result

"""The settings of a server: command line, environment, file, default, in this order, and nothing unknown."""

import json
import tomllib

import pytest
from click.testing import CliRunner

from indknn.cli.app import app
from indknn.settings import SERVER


@pytest.fixture
def printed(tmp_path):
    """The printed settings and what is beside each, from a file, variables and options. Or else the error."""

    def run(*options, file=None, **variables):
        path = tmp_path / "server.toml"
        if file is not None:
            path.write_text(file)
            options = (*options, "--config", str(path))
        done = CliRunner().invoke(app, ["serve", "a.store", "--print-config", *options], env=variables)
        if done.exit_code:
            return done.output.replace(str(path), "FILE")
        told = tomllib.loads(done.output)["server"]
        lines = (line.partition("  # ") for line in done.output.splitlines())
        sources = {before.partition(" = ")[0]: after.replace(str(path), "FILE") for before, _, after in lines}
        return {name: (value, sources[name]) for name, value in told.items()}

    return run


def test_the_nearer_word_counts(printed):
    file = "[server]\nport = 1\ntick = 0.5\nmax_batch = 7\nbehind_proxy = true\n"
    found = printed("--port", "3", file=file, INDKNN_PORT="2", INDKNN_MAX_BATCH="8", INDKNN_OPEN_ON_LOOPBACK="1")
    assert found["port"] == (3, "from the command line")
    assert found["max_batch"] == (8, "from the environment: INDKNN_MAX_BATCH")
    assert found["open_on_loopback"] == (True, "from the environment: INDKNN_OPEN_ON_LOOPBACK")
    assert found["tick"] == (0.5, "from FILE")
    assert found["behind_proxy"] == (True, "from FILE")
    assert found["host"] == ("127.0.0.1", "the default")


def test_every_option_of_the_schema_can_be_in_the_file(printed):
    given = {name: p.default for name, p in SERVER.items() if p.default is not None}
    file = "[server]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
    found = printed(file=file)
    assert {name: found[name] for name in given} == {name: (value, "from FILE") for name, value in given.items()}


def test_what_is_printed_can_be_the_file(printed, tmp_path):
    words = ["--tick", "0.25", "--train-every", "inf", "--witness", 'a "b"', "--behind-proxy"]
    first = printed(*words)
    told = "[server]\n" + "\n".join(
        CliRunner().invoke(app, ["serve", "a.store", "--print-config", *words]).output.splitlines()[1:]
    )
    again = printed(file=told)
    assert {name: value for name, (value, _) in again.items()} == {name: value for name, (value, _) in first.items()}


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("[server]\ntik = 1", "FILE: [server] has no setting 'tik'; did you mean 'tick'?"),
        ("[server]\nmax-batch = 1", "did you mean 'max_batch'?"),
        ("[sever]\ntick = 1", "FILE: there is no table 'sever'; did you mean 'server'?"),
        ("port = 1", "FILE: there is no table 'port'"),
        ("[server]\nport = true", "FILE: port must be a whole number, at least 0 and at most 65535, got True"),
        ('[server]\nport = "1"', "FILE: port must be a whole number"),
        ("[server]\ntick = 0", "FILE: tick must be above 0"),
        ("[server]\nwitness = 1", "FILE: witness must be a text, got 1"),
        ('[server]\nstore = ["a", 1]', "FILE: store must be a text, got ['a', 1]"),
        ('[server]\nwitness = ["a"]', "FILE: witness must be a text"),
        ('[server]\nbehind_proxy = "no"', "FILE: behind_proxy must be true or false, got 'no'"),
        ("[server]\nprint_config = true", "FILE: [server] has no setting 'print_config'"),
        ("[server", "FILE cannot be read as TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(printed, file, words):
    assert words in printed(file=file)


def test_a_misspelt_variable_is_refused_and_others_are_left_alone(printed):
    assert "no setting 'INDKNN_PROT'; did you mean 'INDKNN_PORT'?" in printed(INDKNN_PROT="1")
    others = {"INDKNN_HOME": "x", "INDKNN_NATIVE": "0", "INDKNN_SERVICE_HOST": "10.0.0.1", "INDKNN_DATA": "x"}
    assert printed(**others)["host"] == ("127.0.0.1", "the default")


def test_no_password_is_printed():
    run = CliRunner().invoke(app, ["serve", "--print-config"], env={"INDKNN_STORE": "postgresql://u:mellon@h/x"})
    assert run.exit_code == 2
    assert "must hold no password" in run.output
    assert "mellon" not in run.output


def test_the_store_can_be_named_in_the_file_or_the_environment(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('[server]\nstore = "people.store"\n')
    both = ["b.store", "c d.store"]
    for env, named in (
        ({}, "people.store"),
        ({"INDKNN_STORE": "b.store"}, "b.store"),
        ({"INDKNN_STORE": ""}, "people.store"),
        ({"INDKNN_STORE": "b.store,c d.store"}, both),
    ):
        run = CliRunner().invoke(app, ["serve", "--print-config"], env={"INDKNN_CONFIG": str(file), **env})
        assert tomllib.loads(run.output)["server"]["store"] == named
    file.write_text('[server]\nstore = ["a.store", "b.store"]\n')
    run = CliRunner().invoke(app, ["serve", "--print-config", "--config", str(file)])
    assert tomllib.loads(run.output)["server"]["store"] == ["a.store", "b.store"]

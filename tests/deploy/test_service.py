"""The files with which an operator runs the plain service: image, compose, systemd and Helm, each linted."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from indknn import __version__
from indknn.cli.app import app
from indknn.cli.serve import serve_command

yaml = pytest.importorskip("yaml")
DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICE, CHART = DEPLOY / "service", DEPLOY / "helm" / "indknn"
SETTINGS = {option.name for option in serve_command.params}
HELM = shutil.which("helm")


def accepted(file):
    """The settings of a file, as the command reads them."""
    run = CliRunner().invoke(app, ["serve", "--config", str(file), "--print-config"])
    assert run.exit_code == 0, run.output
    return tomllib.loads(run.output)["server"]


def instructions():
    """The instructions of the Dockerfile, each in one line."""
    text = re.sub(r"\\\n\s*", "", (SERVICE / "Dockerfile").read_text())
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_is_built_by_the_rules():
    lines = instructions()
    bases = [rest for word, rest in lines if word == "FROM"]
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+( AS \w+)?", base) for base in bases), bases
    last = lines[[i for i, (word, _) in enumerate(lines) if word == "FROM"][-1] :]
    words = [word for word, _ in last]
    assert dict(last)["USER"].isdigit()  # Kubernetes can only check a number
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert all("apt-get" not in rest for _, rest in last)
    for _, rest in lines:
        assert "apt-get install" not in rest or ("--no-install-recommends" in rest and "/var/lib/apt/lists" in rest)
        assert "pip" not in rest or "--no-cache-dir" in rest
        assert not re.search(r"\bsudo\b|curl .*\|", rest)
    assert "/v2/health/live" in dict(last)["HEALTHCHECK"]
    assert json.loads(dict(last)["ENTRYPOINT"]) == ["indknn"]
    assert json.loads(dict(last)["CMD"]) == ["serve"]
    assert {name.lower() for name in re.findall(r"INDKNN_(\w+)=", dict(last)["ENV"])} <= SETTINGS
    for place in json.loads(dict(last)["VOLUME"]):
        assert any(rest.count(place) for word, rest in last if word in {"RUN", "ENV"}), place


def test_the_image_holds_what_a_build_needs_and_nothing_else():
    kept = [line[1:] for line in (SERVICE / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    root = DEPLOY.parent
    assert all((root / name).exists() for name in kept)
    assert {"pyproject.toml", "setup.py", "src", "README.md"} <= set(kept)


def test_compose_starts_the_image_without_rights():
    (service,) = yaml.safe_load((SERVICE / "compose.yaml").read_text())["services"].values()
    assert service["image"] == f"indknn:{__version__}"
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["mem_limit"] == service["memswap_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert {name.removeprefix("INDKNN_").lower() for name in service["environment"]} <= SETTINGS
    given = {"INDKNN_STORE": "a.store", **service["environment"]}
    run = CliRunner().invoke(app, ["serve", "--print-config"], env=given)
    assert tomllib.loads(run.output)["server"]["behind_proxy"] is True
    mounted = {volume.split(":")[1] for volume in service["volumes"]}
    assert mounted == set(json.loads(dict(instructions())["VOLUME"]))
    comments = re.findall(r"^#\s+((?:init|keys create) .*)$", (SERVICE / "compose.yaml").read_text(), re.M)
    assert len(comments) == 2


def test_the_configuration_file_is_one_that_the_server_takes():
    found = accepted(SERVICE / "server.toml")
    assert found["log"] == "json"
    assert found["store"] == "/var/lib/indknn/people.store"


def test_the_unit_is_one_that_systemd_takes(tmp_path):
    text = (SERVICE / "indknn.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
    assert start.split()[1:3] == ["serve", "--config"]
    paths = accepted(SERVICE / "server.toml")
    writable = re.findall(r"^ReadWritePaths=(.*)$", text, re.M)[0].split()
    for name in ("store", "witness", "backups"):
        assert any(paths[name].startswith(place) for place in writable)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "indknn.service"
    unit.write_text(text.replace("/opt/indknn/bin/indknn", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(unit) not in done.stderr, done.stderr
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]  # at most 2.5 of 10 is exposed


def values():
    return yaml.safe_load((CHART / "values.yaml").read_text())


def test_the_chart_uses_values_that_there_are():
    given = values()
    for file in (CHART / "templates").iterdir():
        for name in re.findall(r"\.Values\.([\w.]+)", file.read_text()):
            found = given
            for part in name.split("."):
                assert part in found, f"{file.name}: {name}"
                found = found[part]
        assert file.read_text().count("{{") == file.read_text().count("}}")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert set(given["server"]) <= SETTINGS


def test_the_settings_of_the_chart_are_those_of_the_server(tmp_path):
    lines = [f"{name} = {json.dumps(value)}" for name, value in values()["server"].items()]
    file = tmp_path / "server.toml"
    file.write_text("\n".join(["[server]", *lines]))
    assert accepted(file)["behind_proxy"] is True


@pytest.mark.skipif(HELM is None, reason="helm is not installed")
@pytest.mark.parametrize("setup", ["false", "true"])
def test_the_chart_renders(setup, tmp_path):
    subprocess.run([HELM, "lint", "--strict", str(CHART)], check=True, capture_output=True)
    command = [HELM, "template", "people", str(CHART), "--set", f"setup={setup}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    made = {part["kind"]: part for part in yaml.safe_load_all(done.stdout)}
    assert set(made) == {"ConfigMap", "StatefulSet", "Service", "NetworkPolicy"}
    file = tmp_path / "server.toml"
    file.write_text(made["ConfigMap"]["data"]["server.toml"])
    assert accepted(file)["port"] == 8080
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert ("readinessProbe" in container) == (setup == "false")
    assert {volume["name"] for volume in container["volumeMounts"]} == {"config", "store", "witness", "backup", "tmp"}

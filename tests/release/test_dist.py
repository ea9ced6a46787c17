"""What a stranger installs: the sdist, a wheel made from it, with and without a compiler; and the quickstart runs there."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from itertools import takewhile
from pathlib import Path

import pytest
from tools import release

from pages.blocks import RUN, blocks

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")


def run(*command, cwd, **environment):
    """Run something outside of this checkout; what it printed."""
    left = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**left, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def build(kind, source, out, **environment):
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, source, cwd=out, **environment)
    (made,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The sdist, unpacked. It is built from a copy, so that nothing is left in the checkout."""
    pytest.importorskip("build", reason="a release needs pip install '.[test]'")
    folder = tmp_path_factory.mktemp("sdist")
    copy, out = folder / "copy", folder / "out"
    out.mkdir()
    left_out = shutil.ignore_patterns("*.so", "*.pyd", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=left_out)
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    made = build("sdist", copy, out)
    assert made.name == f"indknn-{VERSION}.tar.gz"
    with tarfile.open(made) as archive:
        # Python 3.11.0 to 3.11.3 have no filters, and this archive is our own.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / f"indknn-{VERSION}"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "no compiler"])
def test_a_wheel_works_in_an_environment_of_its_own(sdist, compiler, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(sdist, source)
    out.mkdir()
    wheel = build("wheel", source, out, **({} if compiler else {"CC": "/bin/false"}))
    names = zipfile.ZipFile(wheel).namelist()
    pages = [f"indknn_lab/{folder}/report.html" for folder in ("audits", "demonstration", "plots")]
    texts = ["indknn_lab/demonstration/story.txt", "indknn_lab/experiments/items/findings.toml"]
    for needed in ("indknn/py.typed", "indknn/server/console/index.html", *pages, *texts):
        assert needed in names
    built = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    if not compiler:
        assert not built
    elif shutil.which("cc") or shutil.which("gcc"):
        assert {"_native", "_sampler"} <= built

    # The packages that it needs are those of this environment; indknn itself comes from the wheel.
    place = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=tmp_path)
    python = place / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel, cwd=tmp_path
    )
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert Path(run(python, "-c", "import indknn; print(indknn.__file__)", cwd=tmp_path).strip()).is_relative_to(place)
    assert run(place / "bin" / "indknn", "--version", cwd=tmp_path).strip().endswith(f" {VERSION}")
    told = json.loads(run(place / "bin" / "indknn", "doctor", "--json", cwd=tmp_path))
    (scanner,) = (line["found"] for line in told if line["what"] == "scanner")
    assert scanner.startswith("native") if built else scanner.startswith("numpy")

    page = (ROOT / "docs" / "quickstart.md").read_text()
    code = [(b.language, b.code) for b in blocks(page) if b.language in RUN and not b.reason]
    if compiler:  # the rest of the page takes as long again, and differs only by the scan
        code = list(takewhile(lambda one: one[0] == "python", code))
    (tmp_path / "blocks.json").write_text(json.dumps(code))
    told = run(python, "-c", release.DRIVER, "blocks.json", cwd=tmp_path, PATH=path)
    assert "of the answers are right" in told
    assert compiler or "all is well" in told


def test_the_version_is_the_same_in_all_files(monkeypatch, tmp_path):
    assert release.versions(tmp_path) == VERSION
    monkeypatch.setattr(release, "VERSION", "9.9.9")
    with pytest.raises(release.FailedError, match=r"CITATION.cff, CHANGELOG.md, .* must name version 9.9.9"):
        release.versions(tmp_path)


def test_a_check_that_fails_does_not_hide_the_others(monkeypatch, capsys):
    def fails(folder):
        raise release.FailedError("no wheel")

    def skips(folder):
        raise release.SkippedError("no helm")

    monkeypatch.setattr(release, "CHECKS", {"build": fails, "chart": skips, "unit": lambda folder: "verified"})
    assert release.main() == 1
    told = capsys.readouterr().out
    assert all(word in told for word in ("FAILED: no wheel", "skipped: no helm", "verified", "not ready"))
    monkeypatch.setattr(release, "CHECKS", {"chart": skips})
    assert release.main() == 0

"""The extensions, compiled with the sanitisers of addresses and of undefined behaviour, pass their own tests."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"indknn.core._training": "core/_training.c", "indknn.core._votes": "core/_votes.c"}
FLAGS = [
    "-shared",
    "-fPIC",
    "-g",
    "-O1",
    "-std=c11",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
LOAD = """
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
for name, path in {built!r}.items():
    spec = spec_from_loader(name, ExtensionFileLoader(name, path))
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
"""


def libraries():
    """The sanitisers' libraries, or nothing where the compiler has none."""
    if shutil.which("gcc") is None or sys.platform != "linux":
        return []
    names = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    found = [subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip() for name in names]
    return found if all(Path(path).is_absolute() for path in found) else []


@pytest.mark.slow
@pytest.mark.skipif(not libraries(), reason="needs gcc with its sanitisers")
def test_native_calls_touch_nothing_but_their_arguments(tmp_path):
    built = {}
    for name, source in SOURCES.items():
        built[name] = str(tmp_path / f"{name}.so")
        include = f"-I{sysconfig.get_paths()['include']}"
        command = ["gcc", *FLAGS, include, str(ROOT / "src/indknn" / source), "-o", built[name]]
        subprocess.run(command, check=True)
    (tmp_path / "sanitised.py").write_text(LOAD.format(built=built))
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries()),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself keeps what it never frees
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    tests = ["tests/core/test_native.py", "tests/core/test_native_training.py"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "sanitised",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:cov",
        *tests,
    ]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "skipped" not in ran.stdout

"""The loops for NEON, compiled for 64-bit Arm and run in an emulator, give the numbers of the plain ones."""

import shutil
import subprocess
from pathlib import Path

import pytest

import indknn

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64-static")
HEADERS = Path(indknn.__file__).parent / "records" / "indexes"
HARNESS = Path(__file__).with_name("neon.c")


@pytest.mark.skipif(COMPILER is None or EMULATOR is None, reason="needs aarch64-linux-gnu-gcc and qemu-aarch64-static")
@pytest.mark.parametrize("march", ["armv8-a", "armv8.2-a+dotprod"])
@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "broken"])
def test_neon_gives_the_numbers_of_plain_c(march, broken, tmp_path):
    header = (HEADERS / "_simd.h").read_text()
    if broken:  # forgets the features after the last whole vector
        header = header.replace(" + dot_plain(x + whole, q->narrow + whole, rows->d - whole)", "")
    (tmp_path / "_simd.h").write_text(header)
    program = tmp_path / "neon"
    flags = ["-O3", "-std=c11", "-Wall", "-Wno-unused-function", "-Wno-unused-variable", "-static", f"-march={march}"]
    command = [COMPILER, *flags, f"-I{tmp_path}", str(HARNESS), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    done = subprocess.run([EMULATOR, str(program)], check=False, capture_output=True, text=True)
    assert done.stdout.endswith(" 0 differ\n") != broken, done.stdout + done.stderr
    assert done.returncode == int(broken)

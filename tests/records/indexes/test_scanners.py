"""Every scanner keeps the contract, on every instruction set of this machine; and how one is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

from contracts.scanner import ScannerContract
from indknn.errors import InvalidInputError
from indknn.records.indexes.scan import NativeScanner, levels, make_scanner
from records.indexes.index_oracle import SCANNERS


class TestNumpyScanner(ScannerContract):
    scanners: ClassVar = {"numpy": SCANNERS["numpy"]}


class TestNativeScanner(ScannerContract):
    scanners: ClassVar = {name: scanner for name, scanner in SCANNERS.items() if name != "numpy"}


@pytest.mark.skipif(not levels(), reason="the C extension is not built here")
def test_the_extension_checks_what_it_is_given():
    from indknn.records.indexes import _native

    x, f = np.zeros((4, 8), np.int8), np.zeros(4, np.float32)
    _native.scan(x, 4, 8, x[:1], f, f, 1, 0)
    for wrong in (
        (x, 5, 8, x[:1], f, f, 1, 0),
        (x, 4, 0, x[:1], f, f, 1, 0),
        (x, 4, 8, x[:0], f, f, 1, 0),
        (x, 4, 8, x[:1], f[:3], f, 1, 0),
        (x, 4, 8, x, f, f[:3], 1, 0),
        (x, 4, 8, x[:1], f, f, 0, 0),
        (x, 4, 8, x[:1], f, f, 1, 99),
        (x, 4, 8, np.zeros((65, 8), np.int8), f, np.zeros(65, np.float32), 1, 0),
    ):
        with pytest.raises(ValueError, match=r"must|fewer"):
            _native.scan(*wrong)
    with pytest.raises(ValueError, match="codes"):
        _native.scan_equal(x, 4, 8, x[:1], f, f, 1, 0, np.zeros(3, np.uint8), np.zeros(1, np.uint8), 1, 1)
    with pytest.raises(ValueError, match="multiple of 8"):
        _native.scan_hamming(x, 4, 8, x[:1], f, f, 1, 0, np.zeros(4, np.uint8), np.zeros(1, np.uint8), 1, 1)
    with pytest.raises(ValueError, match="multiple of 8"):
        _native.signs(x, 4, 8, x, 1, 0)


def test_choice_of_scanner(monkeypatch):
    monkeypatch.delenv("INDKNN_NATIVE", raising=False)
    assert make_scanner("numpy").name == "numpy"
    with pytest.raises(InvalidInputError, match="'fast'"):
        make_scanner("fast")
    with pytest.raises(InvalidInputError, match="got 0"):
        make_scanner("auto", 0)
    if levels():
        assert make_scanner().name == f"native ({levels()[-1]})"
        with pytest.raises(InvalidInputError, match="'mmx'"):
            NativeScanner("mmx")


def test_the_environment_can_turn_the_extension_off():
    program = "from indknn.records.indexes.scan import make_scanner; print(make_scanner().name)"
    env = {**os.environ, "INDKNN_NATIVE": "0"}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "numpy"

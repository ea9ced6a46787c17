"""Suites of tests, one per protocol, which the tests of every implementation inherit."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in ("index", "kernel", "ledger", "noise", "scanner")))

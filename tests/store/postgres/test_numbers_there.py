"""The tests of `test_numbers.py`, in a database."""

import pytest

from store.test_numbers import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

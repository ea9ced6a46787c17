"""The tests of `test_over_time.py`, in a database."""

import pytest

from store.test_over_time import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

"""The tests of `test_store.py`, in a database."""

import pytest

from store.test_store import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

"""The tests of `test_sync.py`, in a database."""

import pytest

from store.test_sync import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

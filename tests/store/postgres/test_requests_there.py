"""The tests of `test_requests.py`, in a database."""

import pytest

from store.test_requests import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

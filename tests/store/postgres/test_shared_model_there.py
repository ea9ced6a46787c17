"""The tests of `test_shared_model.py`, in a database."""

import pytest

from store.test_shared_model import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

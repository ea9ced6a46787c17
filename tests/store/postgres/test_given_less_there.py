"""The tests of `test_given_less.py`, in a database."""

import pytest

from store.test_given_less import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

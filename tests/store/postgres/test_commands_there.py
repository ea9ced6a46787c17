"""The tests of `test_commands.py`, in a database."""

import pytest

from store.test_commands import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

"""The tests of `test_identity.py`, in a database."""

import pytest

from store.test_identity import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")

"""The tests of `test_personal.py`, in a database."""

import pytest

from store.test_personal import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")
del test_a_backup_has_promises_and_an_older_one_is_refused  # noqa: F821  (a backup is of a file)

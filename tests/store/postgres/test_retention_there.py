"""The tests of `test_retention.py`, in a database."""

import pytest

from store.test_retention import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("in_database")
del test_what_has_expired_is_erased_like_a_forget  # noqa: F821  (it looks at the bytes of a file)
del test_balances_are_exact_while_pieces_are_erased_between_answers  # noqa: F821  (a backup is of a file)

"""One bit of the file changes."""

import pytest

from store.faults import flips


@pytest.mark.slow
def test_a_flipped_bit_is_found_refused_or_without_effect():
    seen = flips.run(60, seed=1)
    assert not [what for what in seen if what.startswith("SILENT")]
    assert seen["refused"] > 10

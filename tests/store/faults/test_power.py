"""Power cuts at every kind of moment: what was synced is there, of the rest any part."""

import pytest

from store.faults import law
from store.faults.power import Cuts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_was_answered_is_lost_when_the_power_goes(tmp_path, seed):
    cuts = Cuts(tmp_path, seed, steps=25)
    assert cuts.check(cuts=50) == law.Findings()
    assert cuts.images == 150


@pytest.mark.parametrize("kind", ["numbers, votes", "numbers, the shared model"])
def test_nothing_is_lost_where_records_say_numbers(tmp_path, kind):
    cuts = Cuts(tmp_path, 5, steps=15, **law.KINDS[kind])
    assert cuts.check(cuts=20) == law.Findings()
    assert cuts.images == 60


def test_the_control_without_syncs_loses_answers(tmp_path):
    """The same history without syncs must break the law, or this harness could not see it broken."""
    cuts = Cuts(tmp_path, 0, steps=25, synchronous="OFF")
    found = cuts.check(cuts=30)
    assert found.uncharged > 0
    assert found.wrong_retries > 0


def test_a_kill_and_then_a_power_cut(tmp_path):
    """What a dead process wrote but did not sync shows in the file, and must not be answered from before it is."""
    cuts = Cuts(tmp_path, 7, steps=25)
    assert cuts.check_kill_then_cut(40) == law.Findings()

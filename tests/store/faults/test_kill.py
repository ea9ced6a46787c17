"""`kill -9`, at any time and at chosen points, under load: nothing that was answered is lost."""

import pytest

from store.faults import law
from store.faults.killing import Campaign, chosen_kills, random_kills

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("free_repeats", [True, False])
def test_kills_at_random_times(tmp_path, free_repeats):
    campaign = Campaign(tmp_path, seed=1, free_repeats=free_repeats)
    random_kills(campaign, 10)
    assert campaign.found == law.Findings()
    assert campaign.kills >= 8
    assert len(campaign.law.answered) > 20


@pytest.mark.parametrize("kind", ["numbers, votes", "numbers, the shared model"])
def test_kills_where_records_say_numbers(tmp_path, kind):
    campaign = Campaign(tmp_path, seed=3, free_repeats=False, **law.KINDS[kind])
    random_kills(campaign, 6)
    assert campaign.found == law.Findings()
    assert campaign.kills >= 4
    assert len(campaign.law.answered) > 10


def test_kills_at_every_named_point(tmp_path):
    campaign = Campaign(tmp_path, seed=2, free_repeats=False)
    missed = chosen_kills(campaign)
    assert campaign.found == law.Findings()
    assert len(missed) <= 2

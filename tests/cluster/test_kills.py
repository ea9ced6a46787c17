"""`kill -9` and SIGSTOP of shards and of their coordinator, under load."""

import signal

import pytest

from cluster.killing import CoordinatorKills, ShardKills
from store.faults import law
from store.faults.killing import random_kills

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_kills_of_shards(sign, tmp_path):
    with ShardKills(tmp_path, seed=3, free_repeats=False) as campaign:
        for _ in range(3):
            campaign.kill(sign)
    assert campaign.found == law.Findings()
    assert campaign.kills
    assert len(campaign.law.answered) == 36


def test_kills_of_the_coordinator(tmp_path):
    campaign = CoordinatorKills(tmp_path, seed=4, free_repeats=False)
    random_kills(campaign, 3)
    assert campaign.found == law.Findings()
    assert campaign.law.answered

"""`kill -9` of the client and of the server, under load."""

import pytest

from helpers import postgres_server
from store.faults import law
from store.faults.killing import random_kills
from store.postgres.killing import ClientKills, ServerKills


def test_kills_of_the_client(server, tmp_path):
    campaign = ClientKills(tmp_path, server, seed=5, free_repeats=False)
    random_kills(campaign, 4)
    assert campaign.found == law.Findings()
    assert campaign.kills >= 3
    assert campaign.law.answered


@pytest.mark.parametrize("how", ["backends", "immediate stop"])
def test_kills_of_the_server(how):
    server = postgres_server.Server()  # its own: others would die too
    try:
        campaign = ServerKills(server, seed=6, free_repeats=False)
        for _ in range(2):
            campaign.kill(how)
        assert campaign.found == law.Findings()
        assert len(campaign.law.answered) == 36
    finally:
        server.close()

"""Damage to any file of a store. The campaign itself is `store.faults.flips`; here is a fast sample of each kind."""

import pytest

from store.faults import flips


def silent(seen):
    return [(what, found) for what, counts in seen.items() for found in counts if found.startswith("SILENT")]


@pytest.mark.slow
def test_a_flipped_bit_of_any_file_is_found_refused_or_without_effect():
    seen = flips.run(flips=120, seed=1)
    assert not silent(seen)
    assert set(seen) == {f"flips of the {file}" for file in ("file", "log", "head", "keys")}
    assert seen["flips of the log"]["without effect"] < seen["flips of the log"]["refused"]


def test_damage_is_never_silent():
    seen = flips.run(flips=12, cuts=12, swaps=16, seed=2)
    assert not silent(seen)
    assert seen["cuts of the log"] == {"refused": 12}
    assert seen["swapped copies"]["refused"] > 4


def test_the_campaign_finds_what_the_head_finds(monkeypatch):
    """The control: without heads, cut logs are silent."""
    monkeypatch.setattr("indknn.store.filehome._is_behind", lambda db, mark: False)
    assert silent(flips.run(cuts=12, seed=2))

"""Answers, charges and releases under fixed noise are what they were before the house was rebuilt."""

import json

import pytest

from golden.transcripts import CASES, KEPT, play


@pytest.mark.parametrize(("road", "mode"), CASES)
def test_the_transcript_is_unchanged(road, mode):
    assert play(road, mode) == json.loads(KEPT.read_text())[f"{road}: {mode}"]

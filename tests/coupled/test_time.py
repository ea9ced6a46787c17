"""Rule 17: what one analyst sees, and when, does not depend on what another is told, or asks because of it.

In the second world the releases to ann and to all are those of the first, and whatever bob is told is drawn anew. So bob
asks something else, or nothing. Everything that ann sees must be the same: labels, shared releases, when they come.
"""

from dataclasses import replace
from itertools import product

import pytest

from coupled.histories import MODES, Ask, History, Moment, Query, Records, Row, random_history
from coupled.mutants import COMES, CROWD, asks
from coupled.roads import ROADS
from coupled.worlds import couple
from indknn.settings import Settings

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*byte for byte", "ignore::indknn.errors.PrivacyWarning", "ignore:training of the shared model was"
)
SETTINGS = Settings(2, (0, 1), epsilon=4.0, tau=0.5, sigma2=0.3)


def moody(*x, n=8):
    """Bob asks, every second time only if the last answer pleased him."""
    return tuple(
        Ask((Query(((x[0], x[1] + i / 50),), "bob", adaptive=True, unless=i % 2 if i else None),)) for i in range(n)
    )


@pytest.mark.parametrize("road", ROADS)
def test_after_a_purge_nobody_sees_whether_another_asked(road):
    """Bob may ask before others come, or not at all."""
    others = Records("add", tuple(Row(f"r{i}", f"p{i}", (0.9, i / 9), i % 2) for i in range(9, 15)))
    for seed in range(6):
        events = (CROWD, *moody(1.0, 0.1), Moment("purge"), *moody(1.0, 0.3, n=2)[1:], others, *asks(1.0, 0.5, n=3))
        couple(History(seed, road, SETTINGS, events), "ann")


@pytest.mark.parametrize(("first", "then"), [("votes", "model"), ("model", "votes"), ("model", "model")])
def test_a_refit_with_another_prior_keeps_analysts_apart(first, then):
    one, other = (replace(SETTINGS, mode=mode, reuse="none", max_queries=40) for mode in (first, then))
    other = replace(other, model_share=0.5)
    for seed in range(4):
        events = (
            CROWD,
            COMES,
            *moody(1.0, 0.1, n=20),
            Records("fit", CROWD.rows, other),
            *moody(1.0, 0.3),
            *asks(1.0, 0.2, n=4),
        )
        couple(History(seed, "engine", one, events), "ann")


@pytest.mark.slow
@pytest.mark.parametrize(("road", "mode"), list(product(ROADS, MODES)))
def test_moods_of_others_show_nowhere(road, mode):
    for seed in range(6):
        couple(random_history(seed, road, mode, "exact", events=20, apart=True, moody=0.5), "ann")

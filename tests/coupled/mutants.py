"""Which broken variants of the product two worlds must tell from the product, and the first history that does."""

from coupled.histories import (
    MODES,
    TARGET,
    Ask,
    History,
    Moment,
    Query,
    Records,
    Row,
    random_history,
)
from coupled.tape import ALL, Divergence
from coupled.worlds import couple
from indknn.settings import Settings
from indknn_lab.audits.mutants import MUTANTS

FORCED = {"reused noise", "half noise"}
"""Variants of how noise is drawn. It is forced here, so that is for other checks to see."""
APART = {"shared adviser", "shared pool"}
"""Variants in which one analyst learns from another. That shows in the view of one analyst."""
UNSEEN = {"stale rows"}
"""A round is only about records from before it, so it never looks at a slot that was used again. What is derived from
records may not rely on that: the audit has a check of its own, and so has `test_feature_map.py`."""
CAUGHT = [mutant for mutant in MUTANTS if mutant.name not in FORCED | UNSEEN]

CROWD = Records("add", tuple(Row(f"r{i}", f"p{i}", (1.0, i / 5), i % 2) for i in range(5)))
COMES = Records("add", (Row("t1", TARGET, (1.0, 0.0), 1),))


def asks(*x, analyst="ann", n=1, adaptive=False):
    """So many requests, each a little farther from the last."""
    return tuple(Ask((Query(((x[0], x[1] + i / 50),), analyst, adaptive=adaptive),)) for i in range(n))


def _asked_by_turns():
    """The unnamed analyst asks far from everybody until a round begins by that; then ann asks, then they ask again."""
    begun = asks(-1.0, 0.0, analyst=None, n=10)
    events = (CROWD, COMES, *begun, *asks(1.0, 0.1, n=12), *asks(1.0, 0.2, analyst=None, n=12))
    return History(0, "engine", Settings(2, (0, 1), epsilon=2.0, tau=0.5, sigma2=0.02, prior_share=0.3), events)


def _moved_by_answers():
    """What bob asks follows from what bob was told."""
    settings = Settings(2, (0, 1), epsilon=2.0, tau=0.5, sigma2=0.1)
    return History(0, "engine", settings, (CROWD, *asks(1.0, 0.1, analyst="bob", n=12, adaptive=True), *asks(1.0, 0.3)))


def _asked_after_a_purge():
    """What the unnamed analyst asks after a purge follows from what they were told before it. Ann was told as well."""
    settings = Settings(2, (0, 1), epsilon=2.0, tau=0.5, sigma2=0.1)
    asked = asks(1.0, 0.1, analyst=None, n=12, adaptive=True)
    return History(
        0, "engine", settings, (CROWD, COMES, *asks(1.0, 0.3), *asked, Moment("purge"), *asked, *asks(1.0, 0.4))
    )


def _given_less():
    """Eve sees nothing that is shared, so it may be drawn anew."""
    settings = Settings(2, (0, 1), epsilon=8.0, tau=0.5, analysts={"eve": 0.4})
    return History(0, "engine", settings, (CROWD, COMES, Moment("train"), *asks(1.0, 0.1, analyst="eve", n=8)))


def _paid_before():
    """The target is in the table that people pay for, and comes later."""
    table = (("p0", "1"), ("p1", "2"), (TARGET, "7"))
    return History(0, "store", Settings(2, (0, 1), epsilon=2.0, tau=0.5), (CROWD, COMES, *asks(1.0, 0.1)), table=table)


def _comes_alone():
    return History(0, "store", Settings(2, (0, 1), epsilon=2.0, tau=0.5), (CROWD, Moment("train"), COMES))


WRITTEN = {
    "house ignored": (_asked_by_turns(), ALL),
    "named queries": (_moved_by_answers(), "ann"),
    "forgetful": (_asked_after_a_purge(), "ann"),
    "less sees all": (_given_less(), "eve"),
    "free schema": (_paid_before(), ALL),
    "adds begin rounds": (_comes_alone(), ALL),
}
"""Variants that random histories seldom show, and histories that do."""


def first_finding(mutant, most=60):
    """What is found wrong with a variant, in the first history that shows it; None after so many histories."""
    histories = [WRITTEN[mutant.name]] if mutant.name in WRITTEN else _random(mutant, most)
    for history, only in histories:
        with mutant():
            try:
                couple(history, only)
            except Divergence as error:
                return str(error)
    return None


def _random(mutant, most):
    road, apart = "server" if mutant.name.startswith("server") else "store", mutant.name in APART
    road = "cluster" if "cluster" in mutant.name else road
    for i in range(most):
        seed, mode = divmod(i + 4 * len(MODES), len(MODES))  # from the fourth on, each soon shows in one
        history = random_history(seed, road, list(MODES)[mode], "exact", events=20, apart=apart)
        yield history, "ann" if apart else ALL

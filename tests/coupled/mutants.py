"""Which broken variants of the product two worlds must tell from the product, and the first history that does."""

import numpy as np

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
from indknn.core import mechanism, training
from indknn.settings import Settings
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.patches import Mutant

FORCED = {"reused noise", "half noise"}
"""Variants of how noise is drawn. It is forced here, so that is for other checks to see."""
APART = {"shared adviser", "shared pool"}
"""Variants in which one analyst learns from another. That shows in the view of one analyst."""
UNSEEN = {"stale rows", "expired votes", "held votes", "back in time", "residual uncut", "bounds ignored"}
"""A round is only about records from before it, so it never looks at a slot that was used again. What is derived from
records may not rely on that: the audit has a check of its own, and so has `test_feature_map.py`. Whoever votes pays, also
after a date, under a hold or with a large number: no theorem forbids it, and checks of their own do."""
ELSEWHERE = {"promise ignored", "promise untrained", "lowering tells all", "pace ignored", "periods forgotten"}
ELSEWHERE |= {"unpaid interval"}
"""Variants of budgets that no history here has, and of intervals, which nobody asks for here. `test_budgets.py` has
histories of budgets, and the audit has checks."""
CAUGHT = [mutant for mutant in MUTANTS if mutant.name not in FORCED | UNSEEN | ELSEWHERE]

CROWD = Records("add", tuple(Row(f"r{i}", f"p{i}", (1.0, i / 5), i % 2) for i in range(5)))
COMES = Records("add", (Row("t1", TARGET, (1.0, 0.0), 1),))


def asks(*x, analyst="ann", n=1, adaptive=False):
    """So many requests, each a little farther from the last."""
    return tuple(Ask((Query(((x[0], x[1] + i / 50),), analyst, adaptive=adaptive),)) for i in range(n))


def _asked_by_turns():
    """The unnamed analyst asks far from everybody until a round begins by that; then ann asks, then they ask again."""
    begun = asks(-1.0, 0.0, analyst=None, n=10)
    events = (CROWD, COMES, *begun, *asks(1.0, 0.1, n=12), *asks(1.0, 0.2, analyst=None, n=12))
    return History(0, "engine", Settings(2, (0, 1), epsilon=2.0, tau=0.5, sigma2=0.02, model_share=0.3), events)


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


def _about_residuals():
    """Ann is told what a model gets wrong about people near."""
    given = {"epsilon": 30.0, "tau": 0.2, "sigma2": 0.02, "model_share": 0.5, "target": "number", "bounds": (0.0, 1.0)}
    settings = Settings(2, (), mode="model", **given)
    return History(0, "engine", settings, (CROWD, COMES, Moment("train"), *asks(1.0, 0.0, n=8)))


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
    "residual charged as cut": (_about_residuals(), ALL),
}
"""Variants that random histories seldom show, and histories that do."""


def _mass_for_free():
    def squared(group, vote, plan):
        paid = vote * (group.entry_label == plan.n_classes - 1)
        return np.bincount(group.entry_owner, paid.astype(float) ** 2, minlength=len(group.owners))

    return [(mechanism, "_votes", None), (mechanism, "_squared_norms", squared)]


def _beside_the_mean():
    original = mechanism.group

    def group(owners, said, kappa, plan):
        mean = int(said.mean()) if len(said) and plan.ballot != "class" else 0
        return original(owners, said - mean, kappa, plan)

    return [(mechanism, "group", group)]


def _residuals_for_half():
    original = mechanism.charge_units
    halved = lambda squared, scale: original(squared / 2.0, scale)  # noqa: E731
    return [(training, "_training", None), (training, "charge_units", halved)]


NUMBERS = [
    Mutant("numbers, mass for free", "only the number of a vote is paid for, not its weight", _mass_for_free),
    Mutant("numbers, beside the mean", "votes are about the mean of whoever is near", _beside_the_mean),
    Mutant("numbers, half a gradient", "a gradient is charged by half its squared length", _residuals_for_half),
]
"""Variants that show where records say numbers."""


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
    road = "cluster" if "cluster" in mutant.name else "engine" if mutant.name.startswith("numbers") else road
    for i in range(most):
        about_numbers = mutant.name.startswith("numbers")
        modes = [mode for mode, given in MODES.items() if ("bounds" in given) == about_numbers]
        seed, mode = divmod(i + 4 * len(modes), len(modes))  # from the fourth on, each soon shows in one
        timely = mutant.name.startswith("expiry")
        history = random_history(seed, road, modes[mode], "exact", events=20, apart=apart, timely=timely)
        yield history, "ann" if apart else ALL

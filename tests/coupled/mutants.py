"""Which broken variants of the product two worlds must tell from the product, and the first history that does."""

from coupled.histories import MODES, random_history
from coupled.tape import ALL, Divergence
from coupled.worlds import couple
from indknn_lab.audits.mutants import MUTANTS

FORCED = {"reused noise", "half noise"}
"""Variants of how noise is drawn. It is forced here, so that is for other checks to see."""
APART = {"shared adviser", "shared pool"}
"""Variants in which one analyst learns from another. That shows in the view of one analyst."""
CAUGHT = [mutant for mutant in MUTANTS if mutant.name not in FORCED]


def first_finding(mutant, most=60):
    """What is found wrong with a variant, in the first history that shows it; None after so many histories."""
    road, apart = "server" if mutant.name.startswith("server") else "store", mutant.name in APART
    for i in range(most):
        seed, mode = divmod(i + 4 * len(MODES), len(MODES))  # from the fourth on, each soon shows in one
        history = random_history(seed, road, list(MODES)[mode], "exact", events=20, apart=apart)
        with mutant():
            try:
                couple(history, "ann" if apart else ALL)
            except Divergence as error:
                return str(error)
    return None

"""On the same noise the simulation has the product's charges and labels, and its losses up to rounding; and the tap changes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.types import GRID
from indknn_lab.audits.measure import Shot, simulate, simulations
from indknn_lab.audits.scenarios import AXIS, BASE, Add, Ask, Scenario, label_loss, play
from indknn_lab.audits.tap import tap

QUERIES = 12


class Listed:
    """Noise from a list of standard normals."""

    secure = False

    def __init__(self, normals):
        self.left = list(normals)

    def draw(self, scale, size):
        taken, self.left = self.left[:size], self.left[size:]
        return np.rint(np.array(taken) * float(scale)).astype(np.int64)


def script(records):
    def events(view, rng):
        yield Add(np.repeat(AXIS[None, :], records, axis=0), (1,) * records)
        for _ in range(QUERIES):
            yield Ask(AXIS)

    return events


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("change", [{}, {"sigma2": 0.125}, {"max_queries": 400, "sigma2": 1.0}, {"accountant": "rdp"}])
def test_same_charges_labels_and_losses(records, present, change):
    settings, trials = replace(BASE, **change), 25
    normals = np.random.default_rng(3).standard_normal((trials, QUERIES, 3))
    cursor = {"t": 0}

    def draw(scale, size):
        part = slice(0, 1) if size == 1 else slice(1, 3)
        values = normals[:, cursor["t"], part]
        cursor["t"] += size == 2
        return np.rint(values * scale[:, None]).astype(np.int64)

    run = simulate(settings, [Shot(records, (0, records * GRID))] * QUERIES, present, trials, draw)
    for trial in range(trials):
        noise = Listed(normals[trial].ravel())
        scenario = Scenario("", "", settings, script(records))
        assert play(scenario, present, noise, np.random.default_rng(0)) == pytest.approx(
            run.votes_loss[trial], abs=1e-9
        )
        if present:
            engine = Engine(settings, Listed(normals[trial].ravel()))
            engine.add(np.repeat(AXIS[None, :], records, axis=0), [1] * records, ["t"] * records)
            assert engine.predict(np.repeat(AXIS[None, :], QUERIES, axis=0)).tolist() == run.labels[trial].tolist()
            assert engine.ledger.total_spent(["t"])[0] == run.spent[trial]


def test_simulated_losses_match_when_counts_and_labels_are_seen():
    scenario, _ = simulations()[3]
    settings, trials = scenario.settings, 10
    normals = np.random.default_rng(4).standard_normal((trials, QUERIES, 3))
    draws = iter([normals[:, t, part] for t in range(QUERIES) for part in (slice(0, 1), slice(1, 3))])
    run = simulate(
        settings,
        [Shot(1, (0, GRID))] * QUERIES,
        True,
        trials,
        lambda scale, size: np.rint(next(draws) * scale[:, None]).astype(np.int64),
    )
    for trial in range(trials):
        seen = Scenario("", "", settings, script(1), "counts")
        loss = play(seen, True, Listed(normals[trial].ravel()), np.random.default_rng(0))
        assert loss == pytest.approx(run.labels_loss[trial], abs=1e-9)


def test_the_tap_changes_nothing_and_is_taken_off():
    answers = []
    for tapped in (False, True):
        engine = Engine(BASE, SeededNoise(1))
        engine.add(AXIS[None, :], [1], ["t"])
        queries = np.repeat(AXIS[None, :], 20, axis=0)
        if tapped:
            with tap() as tape:
                answers.append(engine.predict(queries).tolist())
            counts, votes = tape.of("count"), tape.of("votes")
            assert [one.label for one in votes] == answers[-1]
            assert [int(np.argmax(one.noisy[0])) for one in votes] == answers[-1]
            assert [max(int(one.noisy[0][0]), 30 * GRID) for one in counts] == [one.K for one in votes]
            assert not any(one.bare for one in tape)
            engine.predict(queries)
            assert len(tape) == 40
        else:
            answers.append(engine.predict(queries).tolist())
    assert answers[0] == answers[1]


def test_the_probability_of_a_label_by_quadrature_is_right():
    rng = np.random.default_rng(5)
    base, shift, scale = np.array([0, 40, -30]), np.array([50, 0, 0]), 100
    wins = [np.argmax(m / scale + rng.normal(size=(400_000, 3)), axis=1) for m in (base, base + shift)]
    for label in range(3):
        wanted = np.log((wins[1] == label).mean() / (wins[0] == label).mean())
        assert label_loss(label, base, shift, scale) == pytest.approx(wanted, abs=0.02)

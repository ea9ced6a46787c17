from dataclasses import replace
from math import exp

import numpy as np
import pytest

from indknn.errors import InvalidInputError
from indknn_lab.experiments.data import load, query_sets
from indknn_lab.experiments.items.base import first_reaching
from indknn_lab.experiments.methods.base import Axis, search
from indknn_lab.experiments.methods.queries import IndKNN
from indknn_lab.experiments.setting import find


def test_the_grid_grows_until_the_best_is_inside_and_says_so():
    axes = [
        Axis("tau", [0.5, 0.6], below=lambda t: round(t - 0.1, 1), within=(0.1, 1.0)),
        Axis("sigma2", [0.1, 0.2, 0.3], above=lambda s: round(s + 0.1, 1), within=(0.0, 0.9)),
    ]
    found = search(axes, lambda p: 1.0 - (p[0] - 0.3) ** 2 - (p[1] - 0.5) ** 2)
    assert found.best == (0.3, 0.5)
    assert found.extended == ("tau below 0.5", "sigma2 above 0.3")


def test_an_axis_without_more_values_stops():
    found = search([Axis("x", [1.0, 2.0])], lambda p: p[0])
    assert (found.best, found.extended, found.tried) == ((2.0,), (), 2)


def test_growth_is_bounded():
    found = search([Axis("x", [1.0], above=lambda x: x + 1)], lambda p: p[0], max_growths=5)
    assert found.best == (6.0,)
    for best, edge, tried in ((4.0, "x above 1", 5), (-2.0, "x below 0", 4)):
        axis = Axis("x", [0.0, 1.0], below=lambda x: x - 1, above=lambda x: min(x + 1, 4.0), within=(-2.0, 9.0))
        found = search([axis], lambda p, sign=best: p[0] * sign)
        assert (found.best, found.extended, found.tried) == ((best,), (edge,), tried)


def test_validation_and_test_queries_never_meet_even_where_test_sets_overlap():
    for T in (10, 40):
        sets = query_sets("toy", 100, T, 5)
        assert (len(set(np.concatenate(sets.tests))) == 5 * T) == (T == 10)
        assert all(not set(sets.validation) & set(rows) and len(set(rows)) == T for rows in sets.tests)
        again = query_sets("toy", 100, T, 5)
        assert all((a == b).all() for a, b in zip(sets.tests, again.tests, strict=True))


def test_too_few_queries_are_refused():
    with pytest.raises(InvalidInputError, match="too few"):
        query_sets("toy", 100, 51, 5)


def test_the_epsilon_for_an_accuracy_skips_dips_and_never_extrapolates():
    assert first_reaching([1, 2, 4, 8], [0.5, 0.7, 0.6, 0.9], 0.8) == pytest.approx(4.0)
    assert first_reaching([1, 2], [0.8, 0.9], 0.5) == 1.0
    assert first_reaching([1, 2], [0.8, 0.9], 0.95) == float("inf")


def test_the_threshold_has_the_same_steps_of_the_angle_with_every_bandwidth(features):
    setting = find(features, quick=True)
    unit = setting.unit("indknn", "cifar10", 1000, 1.0, kernel="rbf")
    steps = []
    for bandwidth in (None, exp(0.75), exp(1.5)):
        one = replace(unit, bandwidth=bandwidth)
        taus = IndKNN(one, load(setting.path_of(one), one.records)).axes()[0]
        steps.append(taus.values[-1] - taus.below(taus.values[-1]))
    assert steps[0] == steps[1] == pytest.approx(0.025)
    assert steps[2] == pytest.approx(0.025 * exp(-1.5), abs=1e-4)

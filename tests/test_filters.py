"""The filter for mechanisms of others: nobody ever pays more than the budget, and nothing is refunded."""

import copy
import pickle
import subprocess
import sys
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core import accounting
from indknn.core.accounting import UNIT
from indknn.errors import InvalidInputError, PrivacyError, StoreError
from indknn.filters import IndividualFilter
from indknn.types import GRID

TERMS = {"epsilon": 1.0, "delta": 1e-5}
costs = st.floats(0.0, 0.05, allow_nan=False)
steps = st.lists(st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), costs, st.booleans()), max_size=25)


@given(steps)
def test_nobody_spends_more_than_the_budget_and_everybody_pays_at_least_the_exact_cost(steps):
    people = IndividualFilter(**TERMS)
    paid: dict[str, Fraction] = {}
    for names, cost, then_forget in steps:
        order = sorted(names)
        for name, admitted in zip(order, people.admit(order, cost), strict=True):
            before = paid.get(name, Fraction(0))
            # Whoever is admitted pays; whoever is not could not have paid (one unit is lost to each rounding).
            assert admitted or before + Fraction(cost) > Fraction(people.budget) - Fraction(30, UNIT)
            paid[name] = before + Fraction(cost) * bool(admitted)
            assert paid[name] <= Fraction(people.budget)
        if then_forget:
            people.forget(order)
    if paid:
        spent = people.spent(list(paid))
        assert all(Fraction(float(s)) >= p for s, p in zip(spent, paid.values(), strict=True))
        assert (spent <= people.budget).all()


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=6), st.floats(0.5, 50.0))
def test_a_sum_charges_each_person_for_their_own_values(values, sigma):
    people = IndividualFilter(epsilon=100.0, delta=1e-5, random_state=0)
    people.noisy_sum(["ann"] * len(values), values, sigma)
    drawn = ceil(Fraction(sigma) * GRID)  # the scale of the noise, rounded up to the grid
    exact = Fraction(sum(round(v * GRID) for v in values), drawn) ** 2 / 2
    spent = Fraction(float(people.spent(["ann"])[0]))
    if exact <= Fraction(people.budget):
        assert exact <= spent <= exact * (1 + Fraction(1, 2**30)) + Fraction(2, UNIT)


def test_those_who_cannot_pay_do_not_change_the_sum():
    with_ann, without = (IndividualFilter(**TERMS, random_state=3) for _ in range(2))
    with_ann.admit(["ann"], [with_ann.budget])
    rows = np.array([[1.0, 0.5], [0.25, -0.5]])
    total = with_ann.noisy_sum(["ann", "bob"], rows, sigma=10.0)
    assert np.array_equal(total, without.noisy_sum(["bob"], rows[1:], sigma=10.0))


def test_noise_has_the_scale_that_was_asked_for():
    people = IndividualFilter(epsilon=8.0, delta=1e-5, random_state=1)
    drawn = people.noisy_sum(["ann"], np.zeros((1, 20_000)), sigma=3.0)
    assert abs(drawn.std() - 3.0) < 0.1
    assert abs(drawn.mean()) < 0.15


def test_an_order_counts_the_divergence_of_that_order():
    people = IndividualFilter(**TERMS, accountant="rdp", order=16.0)
    assert people.budget == pytest.approx(accounting.budget_at_order(1.0, 1e-5, 16.0), rel=1e-12)
    assert people.admit(["ann"], [people.budget]).all()
    assert 0.999 < people.epsilon_spent(["ann"])[0] <= 1.0 + 1e-6
    assert not people.admit(["ann"], [1e-9]).any()
    best = max(accounting.budget_at_order(1.0, 1e-5, a) / a for a in np.linspace(13, 60, 400))
    assert best == pytest.approx(accounting.budget(1.0, 1e-5, "rdp"), rel=1e-3)  # a Gaussian step of α·ρ


@pytest.mark.parametrize("order", [16.0, 32.5])
def test_with_an_order_a_sum_costs_its_divergence_of_that_order(order):
    people = IndividualFilter(**TERMS, accountant="rdp", order=order, random_state=0)
    people.noisy_sum(["ann"], [1.0], sigma=10.0)
    exact = Fraction(order) / 200  # D_α of two Gaussians is α·Δ²/(2·sigma²)
    assert exact <= Fraction(float(people.spent(["ann"])[0])) <= exact * (1 + Fraction(1, 2**20))
    for _ in range(300):
        people.noisy_sum(["ann"], [1.0], sigma=10.0)
    admitted = round(float(people.spent(["ann"])[0]) / float(exact))
    assert accounting.epsilon(admitted / 200, 1e-5, "rdp") <= 1.0  # the best of all orders is no worse than this one


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_nobody_is_a_sum_with_the_same_noise(shape):
    people, others = (IndividualFilter(**TERMS, random_state=5) for _ in range(2))
    nobody = people.noisy_sum([], np.zeros(shape), sigma=2.0)
    assert np.array_equal(nobody, others.noisy_sum(["ann"], np.zeros((1, *shape[1:])), sigma=2.0))


def test_a_file_refuses_seeded_noise_because_it_would_repeat(tmp_path):
    with pytest.raises(PrivacyError, match="seeded noise"):
        IndividualFilter(**TERMS, path=tmp_path / "people.filter", random_state=3)
    assert not (tmp_path / "people.filter").exists()


def test_only_this_user_may_read_the_file(tmp_path):
    with IndividualFilter(**TERMS, path=tmp_path / "people.filter"):
        assert (tmp_path / "people.filter").stat().st_mode & 0o077 == 0


def test_a_forked_process_cannot_spend_the_budgets_again():
    code = """
import os
from indknn.errors import PrivacyError
from indknn.filters import IndividualFilter
people = IndividualFilter(1.0, 1e-5)
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    people.noisy_sum(["ann"], [1.0], sigma=10.0)
except PrivacyError:
    os._exit(7)
os._exit(0)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda people: pickle.loads(pickle.dumps(people))])
def test_a_copy_cannot_spend_the_budgets_again(copied):
    people = IndividualFilter(**TERMS)
    people.admit(["ann"], 0.0)
    with pytest.raises(PrivacyError, match="cannot be copied or pickled"):
        copied(people)


@pytest.mark.parametrize("n", [1, 3000])
def test_what_is_refused_does_not_depend_on_how_many_people_there_are(n):
    people, names = IndividualFilter(**TERMS), [f"p{i}" for i in range(n)]
    assert people.noisy_sum(names, np.full(n, 1024.0), sigma=2.0**30).shape == (1,)
    with pytest.raises(InvalidInputError, match="values must be numbers, from -1024 to 1024"):
        people.noisy_sum(names, np.full(n, 1025.0), sigma=2.0**30)


def test_spending_survives_reopening_and_forgetting(tmp_path):
    path = tmp_path / "people.filter"
    with IndividualFilter(**TERMS, path=path) as people:
        people.admit(["ann", "bob"], [0.03, 0.01])
        people.forget(["ann"])
        with pytest.raises(StoreError, match="locked"):
            IndividualFilter(**TERMS, path=path)
    assert b"ann" not in path.read_bytes()
    with IndividualFilter(**TERMS, path=path) as people:
        assert people.spent(["bob", "ann"]).round(6).tolist() == [0.01, 0.03]
        assert people.admit(["ann", "bob", "cleo"], 0.02).tolist() == [False, True, True]
    with pytest.raises(InvalidInputError, match="was made with"):
        IndividualFilter(epsilon=2.0, delta=1e-5, path=path)
    with IndividualFilter(**TERMS, path=path) as people:
        assert people.spent(["ann", "bob", "cleo"]).round(6).tolist() == [0.03, 0.03, 0.02]


def test_a_killed_process_has_written_what_it_admitted(tmp_path):
    path = tmp_path / "people.filter"
    code = f"""
import os
from indknn.filters import IndividualFilter
people = IndividualFilter(1.0, 1e-5, path={str(path)!r})
for _ in range(3):
    people.admit(["ann"], [0.01])
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with IndividualFilter(**TERMS, path=path) as people:
        assert people.spent(["ann"])[0] >= 0.03
        assert not people.admit(["ann"], [0.01]).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.admit(["ann", "ann"], 0.1), "a person is given twice"),
        (lambda p: p.admit(["ann"], [-0.1]), r"costs must be numbers, at least 0, got .*-0\.1"),
        (lambda p: p.admit(["ann"], [np.nan]), "costs must be numbers"),
        (lambda p: p.noisy_sum(["ann"], [np.inf], 1.0), "values must be numbers"),
        (lambda p: p.noisy_sum(["ann"], [1.0, 2.0], 1.0), "there are 1 people and 2 rows"),
        (lambda p: p.noisy_sum(["ann"], [1.0], 0.0), "sigma must be above 0"),
        (lambda p: p.spent(["zoe"]), "unknown owner 'zoe'"),
        (lambda _: IndividualFilter(**TERMS, order=1.0), "order must be a number above 1, got 1.0"),
        (lambda _: IndividualFilter(**TERMS, order=2.0), "order 2 proves nothing"),
    ],
)
def test_refusals_charge_nobody(call, message):
    people = IndividualFilter(**TERMS)
    people.admit(["ann"], 0.0)
    with pytest.raises(InvalidInputError, match=message):
        call(people)
    assert people.spent(["ann"]).tolist() == [0.0]


def test_an_endless_cost_is_never_admitted():
    people = IndividualFilter(**TERMS)
    assert not people.admit(["ann"], [np.inf]).any()

"""The k nearest, and how far one record can move their vote: by brute force over everything that is small."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn.core.quantise import quantise
from indknn_lab.baselines.knn import (
    SENSITIVITY,
    PoissonSampler,
    entropy_from,
    nearest,
    nearest_in_sample,
    similarities,
)

levels = st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=0, max_size=9)  # ties everywhere


@given(levels, st.integers(1, 12))
def test_nearest_is_the_prefix_of_one_total_order(values, m):
    similarity = np.array(values)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:m]
    assert nearest(similarity, m).tolist() == expected


@given(levels, st.integers(1, 6), st.data())
def test_one_record_moves_the_vote_by_at_most_root_two(values, k, data):
    n = len(values)
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), dtype=np.int64)
    place = data.draw(st.integers(0, n))
    z, y = data.draw(st.sampled_from([0.1, 0.2, 0.3])), data.draw(st.integers(0, 2))
    more, more_labels = np.insert(np.array(values), place, z), np.insert(labels, place, y)
    without = np.bincount(labels[nearest(np.array(values), k)], minlength=3)
    with_it = np.bincount(more_labels[nearest(more, k)], minlength=3)
    assert np.linalg.norm(with_it - without) <= SENSITIVITY + 1e-12


def test_root_two_is_reached_so_one_would_be_wrong():
    similarity, labels = np.array([0.9, 0.5, 0.8]), np.array([0, 1, 1])
    full = np.bincount(labels[nearest(similarity, 2)], minlength=2)
    without_first = np.bincount(labels[1:][nearest(similarity[1:], 2)], minlength=2)
    assert np.linalg.norm(full - without_first) == pytest.approx(SENSITIVITY)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_sensitivity_within_every_sample(k):
    """All samples of the others, all places of the new record, all labels."""
    base = np.array([0.4, 0.4, 0.6, 0.2])
    labels = np.array([0, 1, 1, 0])
    for coins in product([False, True], repeat=4):
        sample = np.array(coins)
        without = np.bincount(labels[sample][nearest(base[sample], k)], minlength=2)
        for place, z, y in product(range(5), [0.1, 0.4, 0.7], [0, 1]):
            s, t = np.insert(base, place, z), np.insert(labels, place, y)
            chosen = np.insert(sample, place, True)
            with_it = np.bincount(t[chosen][nearest(s[chosen], k)], minlength=2)
            assert np.linalg.norm(with_it - without) <= SENSITIVITY + 1e-12


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from([0.05, 0.3, 0.9, 1.0]), st.integers(0, 2**20))
def test_walk_gives_the_top_k_of_the_sample_its_coins_made(k, p, seed):
    """Throwing the coins along the order of nearness, and only as many as needed, is the same sample."""
    rng = np.random.default_rng(seed)
    similarity = np.round(rng.normal(size=300), 1)
    thrown: list[np.ndarray] = []

    def coins(n):
        thrown.append(rng.random(n) < p)
        return thrown[-1]

    got = nearest_in_sample(similarity, k, coins, p)
    outcome = np.concatenate(thrown)
    order = nearest(similarity, 300)
    in_sample = order[: len(outcome)][outcome]
    assert got.tolist() == in_sample[:k].tolist()
    assert len(got) == k or len(outcome) == 300


def test_every_record_is_as_likely_to_vote():
    similarity = np.linspace(1.0, 0.0, 40)
    coins = PoissonSampler(0.25, entropy_from(3))
    seen = np.zeros(40)
    for _ in range(8000):
        seen[nearest_in_sample(similarity, 40, coins, 0.25)] += 1  # k = n: the whole sample
    assert np.abs(seen / 8000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 8000)


@pytest.mark.parametrize("p", [0.02, 0.3, 1 / 65536, 0.5 + 2.0**-40, 1.0])
def test_coins(p):
    n = 400_000
    heads = PoissonSampler(p, entropy_from(11))(n).sum()
    assert abs(heads - p * n) <= 5 * np.sqrt(p * (1 - p) * n)


def test_coins_are_exact_where_sixteen_bits_do_not_decide():
    p = 3.5 / 65536
    words = np.array([2, 3, 3, 4], dtype=np.uint16).tobytes()
    more = np.array([2**31 - 1, 2**31], dtype=np.uint32).tobytes()
    source = iter([words, more])
    assert PoissonSampler(p, lambda n: next(source))(4).tolist() == [True, True, False, False]


def test_similarity_is_the_same_bits_wherever_a_record_stands():
    rng = np.random.default_rng(2)
    X, queries = rng.normal(size=(900, 50)), quantise(rng.normal(size=(70, 50)))
    alone = np.array(list(similarities(queries, quantise(X))))
    shifted = np.array(list(similarities(queries, quantise(np.vstack([rng.normal(size=(1, 50)), X])))))
    assert np.array_equal(alone, shifted[:, 1:])

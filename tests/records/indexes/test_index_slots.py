"""The storage under the indexes: exact norms, bytes overwritten, few bytes per record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core.kernels import Cosine
from indknn.errors import InvalidInputError
from indknn.records.indexes import LSHIndex
from indknn.records.indexes.scan import Slots
from indknn.types import Vectors
from records.indexes.index_oracle import some, vectors


def test_the_norm_comes_back_to_the_last_bit():
    rng = np.random.default_rng(0)
    for d in (1, 2, 384, 5000, 1 << 17):
        held = some(rng, 20, d, extreme=d > 5000)
        slots = Slots(d)
        slots.add(held)
        np.testing.assert_array_equal(slots.root_norm(slice(0, 20)), held.root_norm)


@given(st.integers(1, 2**31 - 1))
def test_an_integer_is_found_again_from_its_root(squared):
    root = np.sqrt(np.float64(squared))
    assert int(np.rint(root * root)) == squared


@given(st.integers(1, (1 << 22) - 1))
def test_a_short_vectors_length_in_32_bits_determines_the_length_in_64(squared):
    slots = Slots(255)
    assert not slots.squared.shape[1]
    slots.add(Vectors(np.ones((1, 255), dtype=np.int8), np.sqrt([float(squared)]), np.ones(1)))
    assert slots.root_norm(np.array([0]))[0] == np.sqrt(np.float64(squared))
    assert Slots(256).squared.shape[1]


@pytest.mark.parametrize("n_features", [6, 300])
def test_the_bytes_of_a_forgotten_record_are_overwritten(n_features):
    slots = Slots(n_features, with_scale=True, code_bytes=3)
    held = vectors(np.full((5, n_features), 77, dtype=np.int8), scale=0.77)
    where = slots.add(held, np.full((5, 3), 77, dtype=np.uint8))
    slots.remove(where[1:2])
    slots.remove(where[3:5])
    assert np.isnan(slots.roots[: slots.used]).tolist() == [False, True, False, True, True]
    for slot in (1, 3, 4):
        assert not slots.values[slot].any()
        assert not slots.codes[slot].any()
        assert not slots.squared[slot].any()
        assert slots.scale[slot] == 0
        assert np.isnan(slots.roots[slot])


def test_an_outgrown_copy_is_overwritten():
    slots = Slots(4)
    slots.add(some(np.random.default_rng(0), 64, 4))
    old = slots.values
    slots.add(some(np.random.default_rng(1), 1, 4))
    assert slots.values is not old
    assert not old.any()


def test_growth_is_geometric():
    slots, one = Slots(4), some(np.random.default_rng(0), 1, 4)
    capacities = set()
    for _ in range(2000):
        slots.add(one)
        capacities.add(len(slots.values))
    assert len(capacities) < 15
    assert len(slots) == 2000


def test_a_record_takes_few_bytes_beside_its_features():
    assert Slots(384).bytes_per_slot == 384 + 8
    assert Slots(384, with_scale=True).bytes_per_slot == 384 + 16
    assert LSHIndex(Cosine(), 384).slots.bytes_per_slot == 384 + 8 + 30


def test_rows_start_on_cache_lines():
    slots = Slots(64)
    slots.add(some(np.random.default_rng(0), 200, 64))
    assert slots.values.ctypes.data % 64 == 0


def test_freed_slots_are_taken_first_last_freed_first():
    slots, held = Slots(3), some(np.random.default_rng(0), 4, 3)
    slots.add(held)
    slots.remove(np.array([2]))
    slots.remove(np.array([0]))
    assert slots.add(held[slice(0, 3)]).tolist() == [0, 2, 4]


@pytest.mark.parametrize("d", [0, -1, (1 << 17) + 1])
def test_a_number_of_features_that_is_not_allowed(d):
    with pytest.raises(InvalidInputError, match="n_features"):
        Slots(d)

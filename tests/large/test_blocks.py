"""Rows are taken in blocks: the bits are those of the whole array at once, whatever type came and wherever blocks end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn import IndKNNClassifier
from indknn.core import quantise as module
from indknn.core.quantise import LEVELS, quantise, root_norms
from indknn.errors import InvalidInputError
from indknn.records.indexes import scan as slots_module
from indknn.records.indexes.scan import Slots
from indknn.types import Vectors

TYPES = ("float64", "float32", "float16", "int8", "uint8", "int16", "int32", "int64", "uint64", "longdouble")


def at_once(X, center=None):
    """What a block must agree with: all rows in float64, one step after the other."""
    rows = np.array(X, dtype=np.float64, order="C")
    if center is not None:
        rows -= center
    largest = np.abs(rows).max(axis=1, initial=0.0)
    values = np.rint(rows / largest[:, None] * LEVELS).astype(np.int8)
    return Vectors(values, root_norms(values), largest / LEVELS)


def same_bits(one, other):
    pairs = ((one.values, other.values), (one.root_norm, other.root_norm), (one.scale, other.scale))
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def rows_of(kind, shape, seed=0):
    rng = np.random.default_rng(seed)
    low = 0 if kind.startswith("u") else -100
    whole = np.dtype(kind).kind in "iu"
    X = (rng.integers(low, 101, size=shape) if whole else 10 * rng.standard_normal(shape)).astype(kind)
    X[:, 0] = 1  # no row is all zeros
    return X


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("block", [1, 7, 36, 1 << 17])
def test_blocks_have_the_bits_of_the_whole(monkeypatch, kind, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    for n in (1, 2, 35, 36, 37):
        X = rows_of(kind, (n, 6), n)
        center = np.linspace(-0.3, 0.4, 6)
        assert same_bits(quantise(X), at_once(X))
        assert same_bits(quantise(X, center), at_once(X, center))
        assert same_bits(quantise(X[::-1, ::-1]), at_once(X[::-1, ::-1]))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 64), st.sampled_from(["float64", "float32"]), st.data())
@settings(max_examples=50, deadline=None)
def test_any_numbers_at_any_edge(n, d, block, kind, data):
    bits = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(bits)
    X = (rng.standard_normal((n, d)) * 10.0 ** rng.integers(-30, 30, size=(n, 1))).astype(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        assert same_bits(quantise(X), at_once(X))


def test_lists_and_memory_maps_are_rows_too(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 12)
    X = rows_of("float32", (50, 6))
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    assert same_bits(quantise(mapped), at_once(X))
    assert same_bits(quantise(X.tolist()), at_once(X.astype(np.float64)))
    assert same_bits(quantise([[1, 2], [3, 4]]), at_once([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize("block", [1, 12, 1 << 17])
def test_an_error_names_the_first_bad_row(monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    for kind in ("float64", "float32", "float16"):
        X = rows_of(kind, (50, 6))
        X[31], X[44] = 0.0, 0.0
        with pytest.raises(InvalidInputError, match="^row 31 of X is a zero vector"):
            quantise(X)
        X[40, 2], X[49, 1] = np.inf, np.nan  # told before zeros, as ever
        with pytest.raises(InvalidInputError, match="^row 40 of X holds NaN or infinity"):
            quantise(X)
    X = rows_of("int32", (50, 6))
    X[17] = 0
    with pytest.raises(InvalidInputError, match="^row 17 of X is a zero vector"):
        quantise(X)


def test_every_raw_row_is_shown_once(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 13)
    seen: list[np.ndarray] = []
    X = rows_of("float32", (21, 6))
    quantise(X, np.ones(6), see=lambda block: seen.append(block.copy()))
    assert len(seen) > 5
    np.testing.assert_array_equal(np.concatenate(seen), X.astype(np.float64))


def test_an_empty_index_keeps_spare_rows_and_copies_others(monkeypatch):
    monkeypatch.setattr(slots_module, "_MANY_BYTES", 1)
    monkeypatch.setattr(module, "_BLOCK", 12)
    X = rows_of("float32", (200, 6))
    shared = quantise(X)
    spare = Vectors(shared.values, shared.root_norm, shared.scale, spare=True)
    kept, copied = Slots(6), Slots(6)
    kept.add(spare)
    copied.add(shared)
    assert kept.values is spare.values
    assert not np.shares_memory(copied.values, shared.values)
    for slots in (kept, copied):  # more rows must not harm those that are there
        slots.add(quantise(X[:70]))
        np.testing.assert_array_equal(slots.values[:270], np.concatenate([at_once(X).values, at_once(X[:70]).values]))
        np.testing.assert_array_equal(slots.root_norm(slice(0, 200)), at_once(X).root_norm)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_fit_takes_a_memory_map_without_a_float_copy(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(module, "_BLOCK", 64)
    X, y = rows_of(kind, (300, 6)), np.arange(300) % 3
    np.save(tmp_path / "X.npy", X)
    model = IndKNNClassifier(classes=[0, 1, 2]).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y)
    held = model._engine.shard.index.slots
    assert held.values[:300].tobytes() == at_once(X).values.tobytes()
    assert model.owners_.tolist() == [str(i) for i in range(300)]


def test_a_bad_row_changes_nothing():
    X, y = rows_of("float32", (300, 6)), np.arange(300) % 3
    model = IndKNNClassifier(classes=[0, 1, 2]).fit(X, y)
    X[250, 3] = np.nan
    with pytest.raises(InvalidInputError, match="^row 250 of X holds NaN"):
        model.fit(X, y)
    assert len(model.record_ids_) == 300

"""A step of training in C is that of the NumPy twin to the bit, on every instruction set and any number of threads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core import training
from indknn.core.accounting import to_units
from indknn.core.targets import MIDDLE, TOP
from indknn.core.training import Weights, gradient, predicted, step_scale

pytestmark = pytest.mark.skipif(training._training is None, reason="the C extension was not built, or is turned off")

WIDTHS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 384, 511, 512, 513, 1024, 1100]))
CLASSES = st.one_of(st.integers(1, 12), st.sampled_from([26, 150]))
OWNERS = {
    "one record each": lambda rng, n: rng.permutation(n),
    "a few records each": lambda rng, n: rng.integers(max(n // 2, 1), size=n),
    "one record or many": lambda rng, n: np.where(rng.random(n) < 0.5, 0, np.arange(n)),
    "one owner": lambda rng, n: np.zeros(n, dtype=np.int64),
}


def every_way(values, weights, *arguments):
    """What NumPy says, then what C says on each instruction set: the sums, who pays, how much, and probabilities."""

    def told(threads):
        found = gradient(values, *arguments[:3], weights, *arguments[3:], threads)
        return found.sums, found.owners, found.charges, predicted(values, weights)

    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr(training, "_SHARE", 50)
        best = training.levels()
        with pytest.MonkeyPatch.context() as without:
            without.setattr(training, "_training", None)
            yield told(1)
        for level in best:
            patch.setattr(training, "levels", lambda level=level: range(level + 1))
            yield told(1)
            yield told(3)


def assert_all_equal(ways):
    slow, *fast = ways
    assert fast
    for one in fast:
        for here, there in zip(slow, one, strict=True):
            assert here.shape == there.shape
            assert (here == there).all()


@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    WIDTHS,
    CLASSES,
    st.sampled_from(sorted(OWNERS)),
    st.integers(0, 60),
    st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    st.sampled_from([0.01, 0.25, 1.0, 2.0, 50.0]),
)
def test_a_step_is_that_of_numpy(seed, n, d, c, owners, room, size, clip):
    rng = np.random.default_rng(seed)
    values = rng.integers(-128, 128, size=(n, d)).astype(np.int8)
    values[rng.random(n) < 0.05] = 0
    whose = OWNERS[owners](rng, n)
    limits = rng.integers(0, (1 << room) + 1, size=n)[whose]
    weights = Weights.of(size * rng.normal(size=(d + 1, c)))
    labels = rng.integers(c, size=n)
    scale = step_scale(clip, 32, float(10.0 ** rng.uniform(-6, 1)))
    assert_all_equal(every_way(values, weights, labels, whose, limits, clip, scale))


@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    WIDTHS,
    st.sampled_from(sorted(OWNERS)),
    st.integers(0, 60),
    st.sampled_from([0.0, 1.0, 30.0]),
    st.sampled_from([0.01, 0.3, 1.0]),
)
def test_a_step_about_numbers_is_that_of_numpy(seed, n, d, owners, room, size, bound):
    rng = np.random.default_rng(seed)
    values = rng.integers(-128, 128, size=(n, d)).astype(np.int8)
    whose = OWNERS[owners](rng, n)
    limits = rng.integers(0, (1 << room) + 1, size=n)[whose]
    weights = Weights.of(size * rng.normal(size=(d + 1, 1)), bound)
    labels = rng.choice([0, MIDDLE, TOP, *rng.integers(TOP, size=3)], size=n)
    scale = step_scale(bound, 32, float(10.0 ** rng.uniform(-6, 1)))
    assert_all_equal(every_way(values, weights, labels, whose, limits, bound, scale))


@pytest.mark.parametrize("d", [512, 4097])
@pytest.mark.parametrize("owners", sorted(OWNERS))
def test_the_largest_numbers_do_not_overflow(d, owners):
    """Every feature and weight at its bound, all of one sign: the largest dot products and sums that there are."""
    rng = np.random.default_rng(d)
    values = np.full((300, d), -128, dtype=np.int8)
    top = training.MAX_WEIGHT
    weights = Weights(np.full((d + 1, 3), -top) * np.array([1.0, -1.0, -1.0]), 1e-3)
    limits = np.full(300, to_units(1.0))
    assert_all_equal(every_way(values, weights, np.ones(300, int), OWNERS[owners](rng, 300), limits, 50.0, 1 << 30))
    assert (predicted(values, weights)[:, 0] > 0.99).all()


def test_short_rows_are_multiplied_by_more_than_16_bits():
    values = np.zeros((200, 2), dtype=np.int8)
    values[:, 0] = 1
    weights, limits = Weights.of(np.zeros((3, 2))), np.full(200, to_units(1.0))
    ways = list(every_way(values, weights, np.zeros(200, int), np.arange(200), limits, 1.0, 1 << 30))
    assert_all_equal(ways)
    assert abs(ways[0][0] // 200).max() > 1 << 16


def test_owners_of_more_records_than_sums_allow_add_nothing(monkeypatch):
    monkeypatch.setattr(training, "MOST_RECORDS", 2)
    monkeypatch.setattr(training, "_training", None)
    values, weights = np.full((5, 3), 9, dtype=np.int8), Weights.of(np.zeros((4, 2)))
    owners, limits = np.array([0, 0, 0, 1, 1]), np.full(5, to_units(1.0))
    found = gradient(values, np.zeros(5, int), owners, limits, weights, 0.25, 1 << 30)
    alone = gradient(values[3:], np.zeros(2, int), owners[3:], limits[3:], weights, 0.25, 1 << 30)
    assert (found.sums == alone.sums).all()
    assert found.charges.tolist() == [0, *alone.charges.tolist()]


def arguments(**changed):
    """Correct arguments of the C function, some of them changed."""
    weights = Weights.of(np.ones((4, 2)))
    lines, intercepts = weights.packed
    right = {
        "d": 3,
        "values": np.ones((5, 3), dtype=np.int8),
        "weights": lines,
        "intercepts": intercepts,
        "table": training._TABLE,
        "unit": 1.0,
        "ratio": 0.2,
        "bound": 0.0,
        "labels": np.zeros(5, dtype=np.int64),
        "starts": np.array([0, 1, 2, 5]),
        "most": np.ones(3),
        "limits": np.ones(3, dtype=np.int64),
        "rate": 1.0,
        "units": 9.0,
        "total": np.zeros((2, 4), dtype=np.int64),
        "charges": np.zeros(3, dtype=np.int64),
        "first": 0,
        "end": 3,
        "level": 0,
    }
    return {**right, **changed}.values()


@pytest.mark.parametrize(
    "changed",
    [
        {"d": 0},
        {"d": 1 << 17},
        {"d": 4},
        {"level": 99},
        {"level": -1},
        {"weights": np.zeros((2, 3), dtype=np.int16)},
        {"table": np.zeros(0, dtype=np.float32)},
        {"labels": np.array([0, 0, 0, 0, 2])},
        {"labels": np.array([0, 0, -1, 0, 0])},
        {"labels": np.zeros(4, dtype=np.int64)},
        {"starts": np.array([0, 1, 2, 6])},
        {"starts": np.array([0, 2, 1, 5])},
        {"starts": np.array([-1, 1, 2, 5])},
        {"most": np.ones(2)},
        {"limits": np.ones(4, dtype=np.int64)},
        {"total": np.zeros((2, 3), dtype=np.int64)},
        {"charges": np.zeros(2, dtype=np.int64)},
        {"bound": 0.5},
        {"bound": -0.5},
        {"bound": float("nan")},
        {"first": -1},
        {"end": 4},
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_refused(changed):
    training._training.gradient(*arguments())
    with pytest.raises(ValueError, match="must"):
        training._training.gradient(*arguments(**changed))


def test_a_result_of_another_size_is_refused():
    lines, intercepts = Weights.of(np.ones((4, 2))).packed
    model = 3, np.ones((5, 3), dtype=np.int8), lines, intercepts, training._TABLE, 1.0, 0.2, 0.0
    with pytest.raises(ValueError, match="one row for each record"):
        training._training.probabilities(*model, np.zeros((4, 2)), 0)


def test_no_more_threads_are_started_than_there_is_work_for(monkeypatch):
    """A round in a small store makes dozens of steps, and starting a thread takes about as long as one of them."""
    started = []

    class Counted(training.ThreadPoolExecutor):
        def submit(self, *work, **more):
            started.append(work)
            return super().submit(*work, **more)

    monkeypatch.setattr(training, "ThreadPoolExecutor", Counted)
    rng, weights = np.random.default_rng(0), Weights.of(np.zeros((6, 2)))
    for n, others in ((9, 0), (2 * training._SHARE + 1, 2)):
        values, limits = rng.integers(1, 9, size=(n, 5)).astype(np.int8), np.full(n, to_units(1.0))
        gradient(values, rng.integers(2, size=n), np.arange(n), limits, weights, 0.1, step_scale(0.1, 4, 0.1), 4)
        assert len(started) == others

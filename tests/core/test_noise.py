"""The exact rounded Gaussian and its seeded twin. Statistical tests run on recorded entropy, so they pass or fail for good."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from contracts.noise import NoiseContract
from indknn.core import noise as noise_module
from indknn.core.noise import SecureNoise, SeededNoise, _less, _round_scaled, noise_from


def recorded(seed):
    """The secure sampler fed with reproducible bytes instead of the system's."""
    return SecureNoise(np.random.default_rng(seed).bytes)


class TestSecureNoise(NoiseContract):
    """Whole scales take the C sampler where it was built, the others the Python one."""

    secure = True

    def make(self, seed):
        return recorded(seed)


class TestSeededNoise(NoiseContract):
    def make(self, seed):
        return SeededNoise(seed)


@pytest.mark.skipif(noise_module._sampler is None, reason="the C sampler was not built, or is turned off")
@given(st.integers(1, 58), st.integers(0, 2**32), st.integers(0, 300))
def test_the_c_sampler_is_the_python_one_word_for_word(bits, seed, size):
    scale = (1 << bits) + seed % (1 << bits)
    fast = recorded(seed).draw(scale, size)
    word = noise_module._Words(b"", np.random.default_rng(seed).bytes).next
    assert fast.tolist() == [noise_module._rounded_normal(word, scale, 1) for _ in range(size)]


@pytest.mark.skipif(noise_module._sampler is None, reason="the C sampler was not built, or is turned off")
def test_the_c_sampler_leaves_unfinished_draws_to_their_own_words():
    """A draw cut off by the end of the words must not start over with others: that would favour small values."""
    words = np.random.default_rng(8).bytes(8 * 400)
    whole = noise_module._sampler.draws(words, 1 << 20, 1000)
    values = np.frombuffer(whole[0], dtype=np.int64, count=whole[1])
    assert 10 < whole[1] < 400
    for cut in range(0, len(words), 8):
        body, made, used, hard = noise_module._sampler.draws(words[:cut], 1 << 20, 1000)
        assert not hard
        assert used <= cut
        assert (np.frombuffer(body, dtype=np.int64, count=made) == values[:made]).all()
    with pytest.raises(ValueError, match="scale must be in"):
        noise_module._sampler.draws(words, 1 << 59, 1)


def test_outputs_are_integers_and_every_residue_occurs():
    """No floating-point trace: low bits of the output are uniform, which rounded doubles of a
    large scale are not (from 2^53 on, they are even).
    """
    values = recorded(6).draw((1 << 58) + 1, 4000)
    assert values.dtype == np.int64
    counts = np.bincount(values & 15, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_rounding_is_to_nearest_and_asks_for_digits_until_sure():
    half = 1 << 63
    words = iter([1])
    # x = 0.5 exactly so far: 1·(0 + x) might round either way until the second digit says above.
    assert _round_scaled(lambda: next(words), 0, [half - 1, (1 << 64) - 1], 1, 1) == 0
    assert _round_scaled(lambda: next(words), 0, [half], 1, 1) == 1
    assert _round_scaled(lambda: next(words), 2, [0], 1, 1) == 2


def test_ties_between_deviates_are_broken_by_further_digits():
    words = iter([9, 4, 7, 7, 1, 2])
    a, b = [5], [5]
    assert not _less(lambda: next(words), a, b)
    assert (a, b) == ([5, 9], [5, 4])
    a, b = [5], [5]
    assert _less(lambda: next(words), a, b)
    assert (a, b) == ([5, 7, 1], [5, 7, 2])


def test_secure_noise_reads_the_operating_system_every_time(monkeypatch):
    calls = []

    def spy(n):
        calls.append(n)
        return os.urandom(n)

    noise = SecureNoise(spy)
    noise.draw(100, 1)
    first = len(calls)
    noise.draw(100, 1)
    assert first >= 1
    assert len(calls) > first  # nothing is kept from call to call, which a fork could repeat


def test_a_forked_child_does_not_repeat_its_parent():
    noise = SecureNoise()
    noise.draw(1 << 40, 3)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, noise.draw(1 << 40, 8).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 64) != noise.draw(1 << 40, 8).tobytes()
    os.close(read)
    os.close(write)


def test_two_secure_sources_differ_and_equal_states_repeat():
    assert (SecureNoise().draw(1 << 40, 4) != SecureNoise().draw(1 << 40, 4)).any()
    assert (
        SeededNoise(np.random.RandomState(1)).draw(99, 9) == SeededNoise(np.random.RandomState(1)).draw(99, 9)
    ).all()


def test_only_the_system_source_calls_itself_secure():
    assert noise_from(None).secure
    for seed in (0, 7, np.random.default_rng(1), np.random.RandomState(1)):
        assert not noise_from(seed).secure
    assert SecureNoise.secure
    assert not SeededNoise.secure

"""What every scanner must keep: it finds what the definition says, the same integers bit for bit (rule 1).

Inherit, and provide `scanners`: each of them on every instruction set and number of threads that it has.
"""

from __future__ import annotations

import mmap
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn.records.indexes.scan import Codes, Rows, Scanner
from records.indexes.index_oracle import FEATURES, assert_same, bits_of, brute_scan, some


def setting(seed: int, n: int, d: int, n_queries: int, *, extreme: bool = False, share: float = 0.1):
    """A store with some free slots, queries, and factors that about this share passes."""
    rng = np.random.default_rng(seed)
    records, queries = some(rng, n, d, extreme=extreme), some(rng, n_queries, d, extreme=extreme)
    roots = records.root_norm.astype(np.float32)
    roots[rng.random(n) < 0.1] = np.nan
    angle = np.float64(1.0 if d == 1 else -np.log(2 * share) / np.sqrt(d))
    return Rows(records.values, roots, n), queries.values, (queries.root_norm * angle).astype(np.float32)


class ScannerContract:
    scanners: ClassVar[dict[str, Scanner]] = {}

    def pytest_generate_tests(self, metafunc):
        if "scanner" in metafunc.fixturenames:
            metafunc.parametrize("scanner", list(self.scanners.values()), ids=list(self.scanners))

    @pytest.mark.parametrize("d", FEATURES)
    @pytest.mark.parametrize("extreme", [False, True])
    def test_scan_is_the_integer_dot_product(self, scanner, d, extreme):
        for n, n_queries in ((150, 1), (150, 5), (97, 64)):
            args = setting(d, n, d, n_queries, extreme=extreme)
            assert_same(scanner.scan(*args), brute_scan(*args))

    def test_all_at_the_extremes_the_sums_do_not_overflow(self, scanner):
        for d in (1040, 1041, 1 << 17):
            values = np.full((5, d), -127, dtype=np.int8)
            values[1::2] = 127
            roots = np.ones(5, dtype=np.float32)
            for n_queries in (1, 2):
                found = scanner.scan(
                    Rows(values, roots, 5), values[:n_queries], np.full(2, -np.inf, np.float32)[:n_queries]
                )
                for j in range(n_queries):
                    expected = [127 * 127 * d * (1 if (i - j) % 2 == 0 else -1) for i in range(5)]
                    assert found[j].dots.tolist() == expected

    def test_a_negative_root_is_found_for_no_query_that_was_not_asked(self, scanner):
        for n_queries in (1, 2, 3, 8, 63, 64):
            store, queries, factors = setting(5, 150, 16, n_queries)
            for root in (-1.0, -np.inf, -0.0):
                roots = np.full(150, root, dtype=np.float32)
                with np.errstate(invalid="ignore"):
                    expected = brute_scan(Rows(store.values, roots, 150), queries, factors)
                assert_same(scanner.scan(Rows(store.values, roots, 150), queries, factors), expected)

    def test_every_batch_size_gives_the_same(self, scanner):
        store, queries, factors = setting(3, 210, 37, 64)
        whole = brute_scan(store, queries, factors)
        for size in range(1, 65):
            assert_same(scanner.scan(store, queries[:size], factors[:size]), whole[:size])
            assert_same(scanner.scan(store, queries[-size:], factors[-size:]), whole[-size:])

    def test_many_chunks_come_back_in_order(self, scanner):
        """Large enough that three threads share the work, whoever takes which chunk."""
        store, queries, factors = setting(4, 30_000, 64, 64, share=0.02)
        for n_queries in (1, 2, 64):
            assert_same(
                scanner.scan(store, queries[:n_queries], factors[:n_queries]),
                brute_scan(store, queries[:n_queries], factors[:n_queries]),
            )

    def test_the_last_row_may_be_the_last_byte_in_memory(self, scanner):
        """Vector loads must not reach beyond the store, where there may be no memory at all."""
        page = mmap.PAGESIZE
        area = mmap.mmap(-1, 4 * page)
        whole = np.frombuffer(area, dtype=np.int8)
        for d in (1, 7, 17, 33, 65, 100):
            n = 2 * page // d
            values = whole[4 * page - n * d :].reshape(n, d)
            values[:] = np.random.default_rng(d).integers(-127, 128, (n, d))
            store = Rows(values, np.ones(n, dtype=np.float32), n)
            for n_queries in (1, 3):
                args = (
                    store,
                    some(np.random.default_rng(1), n_queries, d).values,
                    np.full(n_queries, 50, np.float32),
                )
                assert_same(scanner.scan(*args), brute_scan(*args))

    def test_nothing_is_found_in_nothing(self, scanner):
        store, queries, factors = setting(5, 10, 12, 3)
        empty = Rows(store.values, store.roots, 0)
        codes = Codes(np.zeros((10, 8), np.uint8), np.zeros((3, 8), np.uint8))
        for found in (
            scanner.scan(empty, queries, factors),
            scanner.scan_equal(empty, queries, factors, codes, 1),
            scanner.scan_hamming(empty, queries, factors, codes, 64),
        ):
            assert [len(f.slots) for f in found] == [0, 0, 0]

    def test_free_slots_are_never_found(self, scanner):
        store, queries, _ = setting(6, 300, 20, 4)
        nothing = Rows(store.values, np.full(300, np.nan, dtype=np.float32), 300)
        for bound in (-np.inf, -1.0, 0.0):
            found = scanner.scan(nothing, queries, np.full(4, bound, dtype=np.float32))
            assert all(len(f.slots) == 0 for f in found)

    @pytest.mark.parametrize(
        ("size", "width"),
        [
            *((size, 1) for size in (1, 2, 30, 31, 32, 33, 64, 70)),
            *((size, 2) for size in (2, 30, 32, 34, 64, 70)),
        ],
    )
    def test_scan_equal(self, scanner, size, width):
        store, queries, _ = setting(7, 500, 24, 3)
        rng = np.random.default_rng(size)
        top = 256 if width == 1 else 3
        codes = Codes(rng.integers(0, top, (500, size), np.uint8), rng.integers(0, top, (3, size), np.uint8))
        units = [c.view(np.uint16 if width == 2 else np.uint8) for c in codes]
        passes = (units[1][:, None] == units[0][None]).any(axis=2)
        factors = np.zeros(3, dtype=np.float32)
        assert_same(
            scanner.scan_equal(store, queries, factors, codes, width), brute_scan(store, queries, factors, passes)
        )

    @pytest.mark.parametrize("size", [8, 16, 56, 64, 72, 128])
    def test_scan_hamming(self, scanner, size):
        store, queries, factors = setting(8, 500, 24, 3)
        rng = np.random.default_rng(size)
        codes = Codes(rng.integers(0, 256, (500, size), np.uint8), rng.integers(0, 256, (3, size), np.uint8))
        for cut in (0, 4 * size - 3, 4 * size, 8 * size):
            passes = bits_of(codes, 500) <= cut
            assert_same(
                scanner.scan_hamming(store, queries, factors, codes, cut),
                brute_scan(store, queries, factors, passes),
            )

    @pytest.mark.parametrize("d", [1, 3, 64, 100, 1041])
    def test_signs(self, scanner, d):
        rng = np.random.default_rng(d)
        planes = some(rng, 136, d).values
        planes[:8] = 0  # a zero plane gives a one
        for n in (0, 1, 4, 5, 100):
            rows = some(rng, n, d).values if n else np.zeros((0, d), np.int8)
            expected = np.packbits(rows.astype(np.int64) @ planes.T.astype(np.int64) >= 0, axis=1, bitorder="little")
            np.testing.assert_array_equal(scanner.signs(rows, planes), expected.reshape(n, 17))

    @settings(max_examples=60)
    @given(st.integers(0, 2**32), st.integers(1, 130), st.integers(1, 200), st.integers(1, 20), st.booleans())
    def test_scan_on_any_store(self, scanner, seed, n, d, n_queries, extreme):
        args = setting(seed, n, d, n_queries, extreme=extreme)
        assert_same(scanner.scan(*args), brute_scan(*args))

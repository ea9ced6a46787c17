"""What every index must keep, with every kernel and on every scanner: rule 1 of docs/privacy.md.

Inherit, and provide `make(kernel, n_features, scanner)`.
"""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn.core.kernels import RBF, Cosine, Kernel
from indknn.records.indexes import ExactIndex
from indknn.records.indexes.scan import Scanner
from indknn.types import Vectors, tau_on_grid
from records.indexes.index_oracle import SCANNERS, near, some

KERNELS = {"cosine": Cosine(), "rbf": RBF(), "raw": RBF(3.0, normalize=False)}
TAU = tau_on_grid(0.6)


def records(seed: int, n: int, d: int) -> Vectors:
    rng = np.random.default_rng(seed)
    centre = rng.integers(-80, 81, d).astype(np.int8)
    spread = near(rng, centre, n, 60.0)
    return Vectors(spread.values, spread.root_norm, rng.uniform(0.001, 0.02, n))


def selected(index: ExactIndex, queries: Vectors, tau: int = TAU) -> list[dict[int, int]]:
    """For each query, the kernel value of every slot that the index selects."""
    return [dict(zip(s.slots.tolist(), s.kappa.tolist(), strict=True)) for s in index.search(queries, tau)]


def by_definition(kernel: Kernel, held: Vectors, queries: Vectors, tau: int = TAU) -> list[dict[int, int]]:
    """The same by brute force, in int64."""
    result = []
    for i in range(len(queries)):
        dots = (held.values.astype(np.int64) @ queries.values[i].astype(np.int64)).astype(np.float64)
        kappa = kernel.values(dots, held.root_norm, held.scale, float(queries.root_norm[i]), float(queries.scale[i]))
        result.append({int(s): int(kappa[s]) for s in np.flatnonzero(kappa >= tau)})
    return result


class IndexContract:
    kernels = tuple(KERNELS)  # the kernels that this index takes
    finds_all = False  # whether it selects every record with κ >= τ; otherwise some of them

    def make(self, kernel: Kernel, n_features: int, scanner: Scanner) -> ExactIndex:
        raise NotImplementedError

    def new(self, kernel: str, n_features: int, scanner: str) -> ExactIndex:
        return self.make(KERNELS[kernel], n_features, SCANNERS[scanner])

    def pytest_generate_tests(self, metafunc):
        for name, values in (("scanner", list(SCANNERS)), ("kernel", self.kernels)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values)

    def test_selects_by_kernel_value(self, kernel, scanner):
        held, queries = records(0, 300, 48), records(0, 9, 48)
        index = self.new(kernel, 48, scanner)
        index.add(held)
        got, exact = selected(index, queries), by_definition(KERNELS[kernel], held, queries)
        assert any(exact)
        for mine, all_of_it in zip(got, exact, strict=True):
            assert mine.items() <= all_of_it.items()  # the same kernel values, to the last bit
            assert list(mine) == sorted(mine)
            if self.finds_all:
                assert mine == all_of_it
        assert sum(map(len, got)) > 0.3 * sum(map(len, exact))

    def test_a_batch_is_its_queries_one_at_a_time(self, kernel, scanner):
        held, queries = records(1, 120, 33), records(1, 130, 33)
        index = self.new(kernel, 33, scanner)
        index.add(held)
        alone = [selected(index, queries[slice(i, i + 1)])[0] for i in range(130)]
        for size in (1, 2, 15, 16, 17, 63, 64, 65, 129, 130):
            assert selected(index, queries[slice(0, size)]) == alone[:size]

    def test_a_record_is_selected_wherever_it_sits_and_whoever_is_there(self, kernel, scanner):
        held, queries = records(2, 80, 31), records(2, 5, 31)
        whole = self.new(kernel, 31, scanner)
        whole.add(held)
        expected = selected(whole, queries)
        order = np.random.default_rng(0).permutation(80)
        shuffled = self.new(kernel, 31, scanner)
        slots = shuffled.add(held[order])
        slot_of = dict(zip(order.tolist(), slots.tolist(), strict=True))
        for got, want in zip(selected(shuffled, queries), expected, strict=True):
            assert got == {slot_of[record]: kappa for record, kappa in want.items()}
        for record in range(0, 80, 7):
            alone = self.new(kernel, 31, scanner)
            alone.add(held[slice(record, record + 1)])
            for got, want in zip(selected(alone, queries), expected, strict=True):
                assert got == ({0: want[record]} if record in want else {})

    def test_removed_slots_are_silent_and_used_again(self, kernel, scanner):
        held, queries = records(3, 100, 20), records(3, 4, 20)
        index = self.new(kernel, 20, scanner)
        slots = index.add(held)
        before = selected(index, queries)
        gone = np.arange(0, 100, 3)
        index.remove(slots[gone])
        assert len(index) == 100 - len(gone)
        for got, was in zip(selected(index, queries), before, strict=True):
            assert got == {slot: kappa for slot, kappa in was.items() if slot % 3}
        again = index.add(held[gone])
        assert sorted(again.tolist()) == gone.tolist()
        record_in = dict(zip(again.tolist(), gone.tolist(), strict=True))
        for got, was in zip(selected(index, queries), before, strict=True):
            assert {record_in.get(slot, slot): kappa for slot, kappa in got.items()} == was

    def test_an_empty_index_selects_nothing(self, kernel, scanner):
        index = self.new(kernel, 7, scanner)
        queries = records(4, 3, 7)
        assert selected(index, queries) == [{}, {}, {}]
        slots = index.add(records(4, 2, 7))
        index.remove(slots)
        assert selected(index, queries) == [{}, {}, {}]
        assert len(index) == 0
        assert selected(index, queries[slice(0, 0)]) == []

    def test_survives_pickling(self, kernel, scanner):
        index = self.new(kernel, 24, scanner)
        slots = index.add(records(5, 40, 24))
        index.remove(slots[5:9])
        queries = records(5, 3, 24)
        copy = pickle.loads(pickle.dumps(index))
        assert selected(copy, queries) == selected(index, queries)
        assert copy.add(records(6, 6, 24)).tolist() == index.add(records(6, 6, 24)).tolist()
        assert selected(copy, queries) == selected(index, queries)

    @settings(max_examples=40)
    @given(st.data())
    def test_any_history_leaves_what_its_survivors_alone_would(self, data):
        """Adds and removes in any order: then it selects as if only the living had come, on every scanner."""
        d = data.draw(st.integers(1, 70))
        kernel = data.draw(st.sampled_from(["cosine", "rbf"]))
        pool, queries = records(data.draw(st.integers(0, 99)), 60, d), some(np.random.default_rng(1), 3, d)
        indexes = [self.new(kernel, d, scanner) for scanner in SCANNERS]
        living: dict[int, int] = {}
        for _ in range(data.draw(st.integers(1, 8))):
            if living and data.draw(st.booleans()):
                doomed = data.draw(st.lists(st.sampled_from(sorted(living)), unique=True, min_size=1))
                for index in indexes:
                    index.remove(np.array(doomed, dtype=np.int64))
                for slot in doomed:
                    del living[slot]
            else:
                rows = np.array(data.draw(st.lists(st.integers(0, 59), max_size=20)), dtype=np.int64)
                slots = {tuple(index.add(pool[rows]).tolist()) for index in indexes}
                assert len(slots) == 1
                living.update(zip(slots.pop(), rows.tolist(), strict=True))
        tau = tau_on_grid(0.3)
        fresh = self.new(kernel, d, "numpy")
        order = sorted(living)
        fresh.add(pool[np.array([living[slot] for slot in order], dtype=np.int64)])
        expected = [{order[slot]: k for slot, k in found.items()} for found in selected(fresh, queries, tau)]
        for index in indexes:
            assert selected(index, queries, tau) == expected

"""Every index keeps the contract."""

from contracts.index import IndexContract
from indknn.records.indexes import INDEXES
from records.indexes.index_oracle import make


class TestExactIndex(IndexContract):
    finds_all = True

    def make(self, kernel, n_features, scanner):
        return make("exact", kernel, n_features, scanner)


class TestLSHIndex(IndexContract):
    def make(self, kernel, n_features, scanner):
        return make("lsh", kernel, n_features, scanner)


class TestSketchIndex(IndexContract):
    kernels = ("cosine", "rbf")  # it compares angles

    def make(self, kernel, n_features, scanner):
        return make("sketch", kernel, n_features, scanner)


def test_no_index_is_left_out():
    here = {type(suite().new("cosine", 3, "numpy")) for suite in IndexContract.__subclasses__()}
    assert here == set(INDEXES.values())

"""A store takes many rows at once: in one transaction, written some at a time, as if they had come one by one."""

from __future__ import annotations

import numpy as np
import pytest

from indknn.errors import InvalidInputError
from indknn.settings import Settings
from indknn.store import Store, chain

N, D = 9000, 4
SETTINGS = Settings(D, (0, 1, 2), kernel="rbf", normalize=False)  # a kernel that keeps scales
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
Y = np.arange(N) % 3


def rows_of(store):
    records = store.db.execute("SELECT slot, body FROM records ORDER BY slot").fetchall()
    return records, store.db.execute("SELECT slot, name FROM owners ORDER BY slot").fetchall()


@pytest.mark.parametrize(
    "owners",
    [np.arange(N), np.arange(N)[::-1] // 2, [f"p{i % 4000}" for i in range(N)], "each-row"],
    ids=["numbers", "two each, backwards", "text", "each-row"],
)
def test_at_once_from_a_map_or_in_pieces_the_file_is_the_same(tmp_path, owners):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    pieces = [slice(0, 1), slice(1, 4097), slice(4097, N)]
    with Store.create(tmp_path / "a", SETTINGS) as whole, Store.create(tmp_path / "b", SETTINGS) as parts:
        numbers = whole.add(mapped, Y, owners)
        parts.add_batches((X[p].tolist(), Y[p], owners if isinstance(owners, str) else owners[p]) for p in pieces)
        assert numbers.tolist() == list(range(N))
        assert rows_of(whole) == rows_of(parts)
        assert whole.engine.ledger.owners() == parts.engine.ledger.owners()
        assert [entry.facts["records"] for entry in chain.entries(whole.db) if entry.kind == "add"] == [N]
    with Store(tmp_path / "a") as again:  # the books are checked here
        assert len(again.engine.shard) == N
        name = again.engine.ledger.name_of(17)
        mine = again.engine.shard.slots_of_owners([name])
        assert again.forget([name])["records"] == len(mine)


def test_a_bad_last_row_leaves_nothing(tmp_path):
    bad = X.copy()
    bad[-1, 2] = np.nan
    with Store.create(tmp_path / "s", SETTINGS) as store:
        with pytest.raises(InvalidInputError, match=f"^row {N - 1} of X holds NaN"):
            store.add(bad, Y, np.arange(N))
        assert rows_of(store) == ([], [])
        assert store.engine.ledger.n_owners == 0
        store.add(X[:5], Y[:5], np.arange(5))
        assert store.engine.ledger.owners() == ["0", "1", "2", "3", "4"]

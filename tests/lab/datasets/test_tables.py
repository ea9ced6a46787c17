"""Feature files of anybody's making, and the registry that finds them by name."""

import os
from pathlib import Path

import numpy as np
import pytest

from indknn.errors import InvalidInputError
from indknn_lab.datasets import find_datasets, load_features, load_table


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "X_train": rng.integers(-127, 128, size=(5, 4)).astype(np.int8),
        "scale_train": rng.random(5).astype(np.float32),
        "y_train": np.arange(5, dtype=np.uint8),
        "X_test": rng.normal(size=(3, 4)),
        "y_test": np.array(["a", "b", "a"]),
    }


def test_npz_of_either_kind(tmp_path, arrays):
    np.savez(tmp_path / "mine.npz", **arrays)
    data = load_features(tmp_path / "mine.npz")
    assert data.name == "mine"
    assert data.X_train.dtype == data.X_test.dtype == np.float32
    assert np.allclose(data.X_train, arrays["X_train"] * arrays["scale_train"][:, None])
    assert np.allclose(data.X_test, arrays["X_test"])
    assert data.y_test.tolist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale_train": None}, "X_train is int8 and needs scale_train"),
        ({"scale_train": np.ones(4)}, "scale_train must have one entry per row of X_train: 5, got 4"),
        ({"y_test": None}, "has no labels"),
        ({"X_train": None}, "needs a table X_train"),
        ({"y_train": np.zeros(4)}, "y_train must have one entry per row of X_train: 5, got 4"),
        ({"y_train": np.zeros((5, 2))}, r"y_train must have one entry per row of X_train: 5, got \(5, 2\)"),
        ({"X_test": np.ones((3, 7))}, "X_train has 4 features and X_test 7"),
        ({"X_test": np.full((3, 4), np.nan)}, "NaN"),
        ({"X_test": np.array([["x"] * 4] * 3)}, "must hold numbers"),
        ({"y_test": np.array([{}, 1, 2], dtype=object)}, "not a readable npz"),
    ],
)
def test_npz_that_is_not_what_it_should_be(tmp_path, arrays, change, said):
    kept = {name: array for name, array in (arrays | change).items() if array is not None}
    np.savez(tmp_path / "f.npz", **kept)
    with pytest.raises(InvalidInputError, match=said) as caught:
        load_features(tmp_path / "f.npz")
    assert "f.npz" in str(caught.value)


def test_npz_damaged_or_absent(tmp_path, arrays):
    np.savez(tmp_path / "f.npz", **arrays)
    whole = (tmp_path / "f.npz").read_bytes()
    np.save(tmp_path / "one.npy", np.ones((3, 2)))
    for content in (b"", b"no zip at all", whole[: len(whole) // 2], (tmp_path / "one.npy").read_bytes()):
        (tmp_path / "f.npz").write_bytes(content)
        with pytest.raises(InvalidInputError, match="not a readable npz"):
            load_features(tmp_path / "f.npz")
    with pytest.raises(InvalidInputError, match="does not exist"):
        load_features(tmp_path / "g.npz")


def test_table_npz_and_csv(tmp_path):
    X, y = np.array([[0.5, -1.0], [2.0, 3.0]]), np.array([7, 8])
    np.savez(tmp_path / "t.npz", X=X, y=y)
    (tmp_path / "t.csv").write_text("f0,label,f1\n0.5,7,-1\n2,8,3\n")
    for name in ("t.npz", "t.csv"):
        got, labels = load_table(tmp_path / name)
        assert got.tolist() == X.tolist()
        assert labels.tolist() == [7, 8]
    (tmp_path / "t.csv").write_text("species,f0\noak,1\nelm,2\n")
    got, labels = load_table(tmp_path / "t.csv", label="species")
    assert (got.tolist(), labels.tolist()) == ([[1.0], [2.0]], ["oak", "elm"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n", "has no labels"),
        ("label,b\n1,x\n", "row 0: column 'b' must be a number, got 'x'"),
        ("label,b\n1,2,3\n", "row 0: must have 2 fields, got 3"),
        ("label,b\n1\n", "row 0: must have 2 fields, got 1"),
        ("label\n1\n", "no column 'for features', only label"),
        ("label,b\n", "has no labels"),
    ],
)
def test_csv_that_is_not_what_it_should_be(tmp_path, content, said):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InvalidInputError, match=said):
        load_table(tmp_path / "t.csv")


def test_csv_empty_and_unknown_suffix(tmp_path):
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(InvalidInputError, match="empty"):
        load_table(tmp_path / "t.csv")
    (tmp_path / "t.txt").write_text("?")
    with pytest.raises(InvalidInputError, match=r"must end in one of .csv, "):
        load_table(tmp_path / "t.txt")


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow (the parquet extra) is not installed")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [3, 4], "label": ["x", "y"]}), tmp_path / "wide.parquet")
    pq.write_table(pa.table({"embedding": [[1.0, 3.0], [2.0, 4.0]], "label": ["x", "y"]}), tmp_path / "list.parquet")
    for name in ("wide", "list"):
        X, y = load_table(tmp_path / f"{name}.parquet")
        assert X.tolist() == [[1.0, 3.0], [2.0, 4.0]]
        assert y.tolist() == ["x", "y"]
    pq.write_table(pa.table({"e": [[1.0], [2.0, 4.0]], "label": ["x", "y"]}), tmp_path / "ragged.parquet")
    with pytest.raises(InvalidInputError, match="must hold numbers"):
        load_table(tmp_path / "ragged.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(InvalidInputError, match="not a readable parquet"):
        load_table(tmp_path / "bad.parquet")


def test_registry(tmp_path, arrays):
    for name in ("fmnist-r50-mini", "fmnist-r50", "dbpedia-minilm", "cifar100-vit"):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    found = find_datasets(tmp_path)
    assert [path.name for path in found.present["fmnist"]] == ["fmnist-r50.npz", "fmnist-r50-mini.npz"]
    assert found.missing == ("cifar10", "agnews")
    assert found.load("dbpedia").name == "dbpedia-minilm"
    assert found.load("fmnist").name == "fmnist-r50"
    assert found.load("fmnist", "r50-mini").name == "fmnist-r50-mini"
    with pytest.raises(InvalidInputError, match=r"no file cifar10-\*.npz: present are fmnist-r50.npz"):
        found.load("cifar10")
    with pytest.raises(InvalidInputError, match=r"no file fmnist-vit.npz"):
        found.load("fmnist", "vit")
    with pytest.raises(InvalidInputError, match="is not a folder"):
        find_datasets(tmp_path / "nowhere")


@pytest.mark.shared_data
def test_the_real_folder():
    folder = Path(os.environ.get("INDKNN_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
    if not (folder / "agnews-minilm.npz").is_file():
        pytest.skip("agnews-minilm.npz is not in INDKNN_DATA nor beside the checkout")
    data = find_datasets(folder).load("agnews")
    assert data.X_test.shape == (7600, 384)
    assert np.allclose(np.linalg.norm(data.X_test, axis=1), 1.0, atol=0.02)

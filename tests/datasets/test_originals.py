"""The original formats, on tiny files written here byte by byte as their authors' programs wrote them."""

import gzip
import os
import pickle
import struct

import numpy as np
import pytest

from indknn.errors import InvalidInputError
from indknn_lab.datasets import load_ag_news, load_cifar10, load_dbpedia14, load_fashion_mnist


def python2_pickle(pixels, labels):
    """A CIFAR-10 batch as Python 2's cPickle wrote it: protocol 2, str keys, a NumPy array of bytes."""

    def text(s):
        return b"U" + bytes([len(s)]) + s

    def number(n):
        return b"J" + struct.pack("<i", n)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + b"(K\0t" + text(b"b") + b"tR"
        b"(K\x01(" + number(pixels.shape[0]) + number(pixels.shape[1]) + b"t"
        b"cnumpy\ndtype\n("
        + text(b"u1")
        + b"K\0K\x01tR(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
        b"\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    )
    items = b"(" + b"".join(number(int(label)) for label in labels) + b"l" if len(labels) else b"]"
    return b"\x80\x02}(" + text(b"batch_label") + text(b"a batch") + text(b"labels") + items + (
        text(b"data") + array + b"u."
    )  # fmt: skip


@pytest.fixture
def batches():
    rng = np.random.default_rng(0)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    return {name: (rng.integers(256, size=(3, 3072), dtype=np.uint8), rng.integers(10, size=3)) for name in names}


def write_cifar(folder, batches, form):
    for name, (pixels, labels) in batches.items():
        if form == "binary":
            rows = np.hstack([labels[:, None].astype(np.uint8), pixels])
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        elif form == "python2":
            (folder / name).write_bytes(python2_pickle(pixels, labels))
        else:
            content = {b"data": pixels, b"labels": [int(label) for label in labels]}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("form", ["python2", "python3", "binary"])
def test_cifar10(tmp_path, batches, form):
    write_cifar(tmp_path, batches, form)
    data = load_cifar10(tmp_path)
    assert (data.train.shape, data.test.shape) == ((15, 32, 32, 3), (3, 32, 32, 3))
    pixels, labels = batches["data_batch_2"]
    # Stored channel by channel: the green value of row 4, column 7 of the batch's second image.
    assert data.train[4, 4, 7, 1] == pixels[1, 1024 + 4 * 32 + 7]
    assert data.y_train[3:6].tolist() == labels.tolist()
    assert data.y_test.tolist() == batches["test_batch"][1].tolist()
    assert data.class_names[3] == "cat"


def test_a_pickle_that_would_run_something_is_refused(tmp_path, batches):
    write_cifar(tmp_path, batches, "python2")

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    for content in ({b"data": Evil()}, {b"data": np.zeros(3), b"labels": []}, {b"data": eval}):
        (tmp_path / "data_batch_3").write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(InvalidInputError, match="data_batch_3: ") as caught:
            load_cifar10(tmp_path)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", b"\x80\x02}.", python2_pickle(np.zeros((2, 5), np.uint8), [1, 1])]
)
def test_a_damaged_batch_says_which(tmp_path, batches, content):
    write_cifar(tmp_path, batches, "python2")
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(InvalidInputError, match="test_batch: not a CIFAR-10 batch"):
        load_cifar10(tmp_path)


def test_binary_of_the_wrong_length_and_missing_files(tmp_path, batches):
    write_cifar(tmp_path, batches, "binary")
    (tmp_path / "data_batch_5.bin").write_bytes(b"\1" * 100)
    with pytest.raises(InvalidInputError, match="100 bytes are no multiple of 3073"):
        load_cifar10(tmp_path)
    (tmp_path / "data_batch_5.bin").write_bytes(b"\x0b" * 3073)
    with pytest.raises(InvalidInputError, match="labels of 0 to 9"):
        load_cifar10(tmp_path)
    (tmp_path / "data_batch_1.bin").unlink()
    with pytest.raises(InvalidInputError, match=r"has no data_batch_1 nor data_batch_1.bin"):
        load_cifar10(tmp_path)
    with pytest.raises(InvalidInputError, match="is not a folder"):
        load_cifar10(tmp_path / "nowhere")


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist(tmp_path, zipped):
    rng = np.random.default_rng(1)
    images = rng.integers(256, size=(4, 28, 28), dtype=np.uint8)
    labels = np.array([9, 0, 3, 5], dtype=np.uint8)
    for part, n in (("train", 4), ("t10k", 2)):
        for name, array in (("images-idx3", images[:n]), ("labels-idx1", labels[:n])):
            path = tmp_path / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    data = load_fashion_mnist(tmp_path)
    assert np.array_equal(data.train, images)
    assert data.y_train.tolist() == [9, 0, 3, 5]
    assert data.y_test.tolist() == [9, 0]
    assert data.class_names[9] == "ankle boot"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not gzip", "cannot be unpacked"),
        (gzip.compress(b"zzzzzz"), "not an idx file"),
        (gzip.compress(bytes([0, 0, 8, 3, 0])), "cut off within its header"),
        (gzip.compress(idx(np.zeros((2, 3), np.uint8))[:-1]), "promises 6 bytes, got 5"),
        (gzip.compress(idx(np.zeros((2, 28, 28), np.uint8)))[:-30], "cannot be unpacked"),
        (gzip.compress(idx(np.zeros((1, 28, 28), np.uint8))), "do not go with labels"),
    ],
    # named, because gzip writes the time into its output and test processes must agree on the names
    ids=["not gzip", "no idx", "short header", "short", "cut", "other length"],
)
def test_a_damaged_idx_file(tmp_path, content, said):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(2, np.uint8))))
    with pytest.raises(InvalidInputError, match=said):
        load_fashion_mnist(tmp_path)


AG = '"3","Wall St. Bears","Short-sellers, Wall Street\'s ""band""\\of ultra-cynics"\n"1","Peace","talks\\nresume"\n'


def test_ag_news(tmp_path):
    (tmp_path / "train.csv").write_text(AG, encoding="utf-8")
    (tmp_path / "test.csv").write_text("Class Index,Title,Description\n" + AG, encoding="utf-8")
    data = load_ag_news(tmp_path)
    assert data.train[0] == 'Wall St. Bears Short-sellers, Wall Street\'s "band" of ultra-cynics'
    assert data.train[1] == "Peace talks resume"
    assert data.y_train.tolist() == data.y_test.tolist() == [2, 0]
    assert data.class_names[2] == "Business"


def test_dbpedia14(tmp_path):
    (tmp_path / "train.csv").write_text('14,"Écrit","  Un livre. "\n1,"ACME","A company."\n', encoding="utf-8")
    (tmp_path / "test.csv").write_text('2,"School","Where one learns."\n', encoding="utf-8")
    data = load_dbpedia14(tmp_path)
    assert data.train == ["Écrit Un livre.", "ACME A company."]
    assert data.y_train.tolist() == [13, 0]
    assert len(data.class_names) == 14


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no rows"),
        ('1,"a","b"\n5,"a","b"\n', "row 2 must be a class of 1 to 4"),
        ('1,"a","b"\nx,"a","b"\n', "row 2 must be a class of 1 to 4"),
        ('1,"a","b"\n3\n', "row 2 must be"),
    ],
)
def test_a_damaged_csv(tmp_path, content, said):
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=f"train.csv: .*{said}"):
        load_ag_news(tmp_path)


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "train.csv").write_bytes(b'1,"\xff\xfe","b"\n')
    with pytest.raises(InvalidInputError, match="not a table of texts"):
        load_ag_news(tmp_path)

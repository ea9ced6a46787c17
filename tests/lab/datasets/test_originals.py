"""From small files in the original formats to a feature file: the steps of docs/features.md."""

import csv
import gzip
import subprocess
import sys

import numpy as np
import pytest

from features.models import image_model, text_model
from helpers.commands import run
from indknn.errors import InvalidInputError
from indknn_lab.datasets import load_features
from indknn_lab.datasets.originals import convert

RNG = np.random.default_rng(0)


def cifar10(folder):
    labels, planes = RNG.integers(10, size=12).astype(np.uint8), RNG.integers(256, size=(12, 3, 32, 32), dtype=np.uint8)
    rows = np.concatenate([labels[:, None], planes.reshape(12, -1)], axis=1)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(rows[2 * i : 2 * i + 2].tobytes())
    (folder / "test_batch.bin").write_bytes(rows[10:].tobytes())
    return planes.transpose(0, 2, 3, 1), labels, 10


def fmnist(folder):
    labels, images = RNG.integers(10, size=9).astype(np.uint8), RNG.integers(256, size=(9, 28, 28), dtype=np.uint8)
    for name, rows in (("train", slice(0, 6)), ("t10k", slice(6, 9))):
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images[rows].tobytes()))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels[rows].tobytes()))
    return images, labels, 6


@pytest.mark.parametrize("write", [cifar10, fmnist])
def test_images(write, tmp_path):
    images, labels, private = write(tmp_path)
    train, test = convert(write.__name__, tmp_path, tmp_path / "out")
    with np.load(train) as first, np.load(test) as second:
        assert np.array_equal(np.concatenate([first["images"], second["images"]]), images)
        assert np.array_equal(np.concatenate([first["y"], second["y"]]), labels)
        assert len(first["y"]) == private


def texts(folder):
    rows = [(1, "Money, again", 'He said "paid"'), (2, "A screen", "is wrong"), (1, "Bank", "")]
    for part, some in (("train", rows[:2]), ("test", rows[2:])):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(some)


@pytest.mark.parametrize(("name", "write", "model"), [("cifar10", cifar10, image_model), ("agnews", texts, text_model)])
def test_every_step_from_original_files_to_one_feature_file(name, write, model, tmp_path):
    write(tmp_path)
    originals = [sys.executable, "-m", "indknn_lab.datasets.originals"]
    done = subprocess.run([*originals, name, tmp_path, tmp_path / "o"], capture_output=True, text=True, check=True)
    parts = []
    for path in done.stdout.split():
        parts.append(path.rsplit(".", 1)[0] + "-X.npz")
        made = run("extract", path, "-o", parts[-1], "--model", model(tmp_path / "model"), "--label", "y")
        assert made.exit_code == 0, made.output
    subprocess.run([*originals, "join", *parts, tmp_path / f"{name}-small.npz"], check=True, capture_output=True)
    data = load_features(tmp_path / f"{name}-small.npz")
    assert (len(data.X_train), len(data.X_test)) == ((10, 2) if name == "cifar10" else (2, 1))
    assert [str(y) for y in data.y_train[:2]] == (
        ["0", "1"] if name == "agnews" else [str(y) for y in data.y_train[:2]]
    )
    usage = subprocess.run([*originals, "nonsense"], capture_output=True, text=True, check=False)
    assert "usage: originals cifar10|fmnist|agnews|dbpedia" in usage.stderr


def test_texts_are_titles_and_texts(tmp_path):
    texts(tmp_path)
    train, _ = convert("dbpedia", tmp_path, tmp_path / "out")
    assert list(csv.reader(train.read_text().splitlines())) == [
        ["text", "y"],
        ['Money, again He said "paid"', "0"],
        ["A screen is wrong", "1"],
    ]


def test_a_wrong_folder_is_one_line(tmp_path):
    with pytest.raises(InvalidInputError, match=r"data_batch_1.bin does not exist: is .* the folder of the original"):
        convert("cifar10", tmp_path, tmp_path / "out")

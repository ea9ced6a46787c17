"""The cache of features: resumes, notices damage, never mixes up items or extractors."""

import numpy as np
import pytest

from indknn.errors import InvalidInputError
from indknn.features import Extractor
from indknn_lab.features import extract


class Toy:
    """Length and first letter: a stand-in that counts its calls and can be made to fail."""

    n_features = 2

    def __init__(self, name="toy", fail_after=None):
        self.name = name
        self.seen = 0
        self.fail_after = fail_after

    def __call__(self, batch):
        if self.fail_after is not None and self.seen + len(batch) > self.fail_after:
            raise KeyboardInterrupt
        self.seen += len(batch)
        return np.array([[len(text), ord(text[0])] for text in batch], dtype=np.float32)


TEXTS = [chr(97 + i % 26) * (1 + i) for i in range(25)]
WANTED = np.array([[1 + i, 97 + i % 26] for i in range(25)], dtype=np.float32)


def shards(tmp_path):
    return sorted(path.name for path in (tmp_path / "toy").iterdir())


def run(tmp_path, toy, items=TEXTS, public=True, **options):
    return extract(items, toy, tmp_path, public=public, batch_size=4, shard_size=10, **options)


def test_toy_is_an_extractor():
    assert isinstance(Toy(), Extractor)


def test_made_once_then_read(tmp_path):
    toy, calls = Toy(), []
    assert np.array_equal(run(tmp_path, toy, progress=lambda *at: calls.append(at)), WANTED)
    assert calls == [(n, 25) for n in (4, 8, 10, 14, 18, 20, 24, 25)]
    assert shards(tmp_path) == ["shard-000000000-10.npz", "shard-000000010-10.npz", "shard-000000020-5.npz"]
    again, calls = Toy(), []
    assert np.array_equal(run(tmp_path, again, progress=lambda *at: calls.append(at)), WANTED)
    assert (again.seen, calls) == (0, [(10, 25), (20, 25), (25, 25)])


def test_resumes_after_a_crash(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Toy(fail_after=14))
    assert shards(tmp_path) == ["shard-000000000-10.npz"]
    toy = Toy()
    assert np.array_equal(run(tmp_path, toy), WANTED)
    assert toy.seen == 15


def test_a_crash_while_writing_leaves_no_shard(tmp_path, monkeypatch):
    from indknn_lab import features as cache

    def fail(source, target):
        raise OSError("no space left")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        run(tmp_path, Toy())
    assert shards(tmp_path) == []


@pytest.mark.parametrize("where", ["front", "middle", "cut", "empty"])
def test_a_damaged_shard_is_noticed_and_made_again(tmp_path, where):
    run(tmp_path, Toy())
    path = tmp_path / "toy" / "shard-000000010-10.npz"
    content = bytearray(path.read_bytes())
    if where == "front":
        content[0] ^= 0xFF
    elif where == "middle":
        # A bit of the features themselves, so that only a checksum can tell.
        content[content.index(np.float32(15).tobytes())] ^= 1
    content = b"" if where == "empty" else content[: len(content) // 2] if where == "cut" else content
    path.write_bytes(content)
    toy = Toy()
    with pytest.warns(UserWarning, match="shard-000000010-10.npz is damaged"):
        assert np.array_equal(run(tmp_path, toy), WANTED)
    assert toy.seen == 10
    assert np.array_equal(run(tmp_path, Toy(fail_after=0)), WANTED)


def test_a_shard_whose_numbers_were_replaced_is_noticed(tmp_path):
    run(tmp_path, Toy())
    path = tmp_path / "toy" / "shard-000000000-10.npz"
    with np.load(path) as npz:
        arrays = dict(npz)
    arrays["features"][3, 1] += 1
    np.savez(path, **arrays)
    with pytest.warns(UserWarning, match="checksum"):
        assert np.array_equal(run(tmp_path, Toy()), WANTED)


def test_other_items_and_other_extractors_do_not_meet(tmp_path):
    run(tmp_path, Toy())
    changed = [*TEXTS[:12], "zzz", *TEXTS[13:]]
    toy = Toy()
    with pytest.warns(UserWarning, match="other items"):
        got = run(tmp_path, toy, items=changed)
    assert (toy.seen, got[12].tolist()) == (10, [3.0, 122.0])
    other = Toy("toy/two: ü")
    run(tmp_path, other, items=changed)
    assert other.seen == 25
    assert sorted(p.name for p in tmp_path.iterdir()) == ["toy", "toy-two-"]


class Padded(Toy):
    """Pads a batch to its longest text, as networks do; the padding shows in every row."""

    def __call__(self, batch):
        self.sizes = [*getattr(self, "sizes", []), len(batch)]
        return super().__call__(batch) + 1e-3 * max(map(len, batch))


def test_a_private_row_depends_on_its_own_item_alone(tmp_path):
    toy = Padded()
    rows = run(tmp_path / "all", toy, public=False)
    assert set(toy.sizes) == {1}
    alone = [run(tmp_path / str(i), Padded(), items=TEXTS[i : i + 1], public=False)[0] for i in range(25)]
    assert np.array_equal(rows, alone)
    with pytest.warns(UserWarning, match="of whole batches"):  # and is not taken for what public items became
        batched = run(tmp_path / "all", Padded())
    assert not np.array_equal(rows, batched)


def test_arrays_of_images(tmp_path):
    class Mean:
        name, n_features = "mean", 1

        def __call__(self, batch):
            return batch.reshape(len(batch), -1).mean(axis=1, keepdims=True)

    images = np.arange(7 * 4, dtype=np.uint8).reshape(7, 2, 2)
    got = extract(images, Mean(), tmp_path, batch_size=2, shard_size=3)
    assert got.dtype == np.float32
    assert got[:, 0].tolist() == images.reshape(7, 4).mean(axis=1).tolist()
    assert extract(images[:0], Mean(), tmp_path).shape == (0, 1)


@pytest.mark.parametrize(
    ("out", "said"),
    [(np.zeros((4, 3)), r"must return shape \(4, 2\)"), (np.full((4, 2), np.nan), "NaN")],
)
def test_what_an_extractor_may_not_return(tmp_path, out, said):
    class Bad(Toy):
        def __call__(self, batch):
            return out

    with pytest.raises(InvalidInputError, match=said):
        run(tmp_path, Bad())
    assert shards(tmp_path) == []


def test_sizes_must_be_positive(tmp_path):
    with pytest.raises(InvalidInputError, match="at least 1"):
        extract(TEXTS, Toy(), tmp_path, shard_size=0)

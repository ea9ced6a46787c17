"""SimCLRv2's architecture, small and with random weights, against a network written down plainly."""

import numpy as np
import pytest
from scipy.signal import correlate

from indknn.errors import InvalidInputError
from indknn_lab.features import find_extractor
from indknn_lab.features.simclr import read_checkpoint, write_onnx

pytest.importorskip("onnx", reason="onnx (the test extra) is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime (the onnx extra) is not installed")
GROUPS, SIZE = (2, 1, 1, 1), 32


def small_network(width=2, seed=0):
    """The variables of a checkpoint, in the order in which TensorFlow makes them."""
    rng, shapes, inside = np.random.default_rng(seed), [(7, 7, 3, width)], width
    for group, blocks in enumerate(GROUPS):
        narrow = width << group
        for block in range(blocks):
            shapes += [(1, 1, inside, 4 * narrow)] * (not block)
            shapes += [(1, 1, inside, narrow), (3, 3, narrow, narrow), (1, 1, narrow, 4 * narrow)]
            inside = 4 * narrow
    found = {}
    for i, shape in enumerate(shapes):
        ending, out = f"_{i}" if i else "", shape[-1]
        found[f"base_model/conv2d{ending}/kernel"] = rng.normal(size=shape) / np.sqrt(np.prod(shape[:3]))
        parts = {"gamma": 1 + 0.1 * rng.normal(size=out), "beta": 0.1 * rng.normal(size=out)}
        parts |= {"moving_mean": 0.1 * rng.normal(size=out), "moving_variance": rng.uniform(0.5, 2.0, out)}
        found |= {f"base_model/batch_normalization{ending}/{name}": values for name, values in parts.items()}
    return found


class Plain:
    """The same network, one step after the other."""

    def __init__(self, weights):
        self.weights, self.next = weights, 0

    def layer(self, x, stride=1):
        ending = f"_{self.next}" if self.next else ""
        self.next += 1
        kernel = self.weights[f"base_model/conv2d{ending}/kernel"]
        around = (len(kernel) - 1) // 2
        padded = np.pad(x, ((around, around), (around, around), (0, 0)))
        channels = [
            correlate(padded, kernel[..., o], mode="valid")[::stride, ::stride, 0] for o in range(kernel.shape[3])
        ]
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (self.weights[f"base_model/batch_normalization{ending}/{n}"] for n in names)
        return (np.stack(channels, axis=-1) - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    def __call__(self, pixels):
        x = np.maximum(self.layer(pixels, 2), 0)
        padded = np.pad(x, ((0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
        half = range(0, len(x), 2)
        x = np.array([[padded[i : i + 3, j : j + 3].max(axis=(0, 1)) for j in half] for i in half])
        for group, blocks in enumerate(GROUPS):
            for block in range(blocks):
                stride = 2 if group and not block else 1
                beside = self.layer(x, stride) if not block else x
                inner = np.maximum(self.layer(x), 0)
                inner = np.maximum(self.layer(inner, stride), 0)
                x = np.maximum(self.layer(inner) + beside, 0)
        return x.mean(axis=(0, 1))


def test_the_model_computes_what_the_checkpoint_means(tmp_path):
    weights = small_network()
    extractor = find_extractor(str(write_onnx(weights, tmp_path / "simclr", groups=GROUPS, size=SIZE)))
    image = np.random.default_rng(1).integers(256, size=(SIZE, SIZE, 3), dtype=np.uint8)
    (found,) = extractor(image[None])
    assert found.shape == (64,)
    assert np.allclose(found, Plain(weights)(image / 255.0), atol=1e-4)
    assert np.ptp(found) > 0.01


def test_other_networks_are_refused(tmp_path):
    weights = small_network()
    with pytest.raises(InvalidInputError, match="a ResNet-50, 101 or 152 without selective kernels is needed, got 5"):
        write_onnx(weights, tmp_path)
    del weights["base_model/conv2d_3/kernel"]
    with pytest.raises(InvalidInputError, match="the checkpoint has no base_model/conv2d_3/kernel"):
        write_onnx(weights, tmp_path, groups=GROUPS)
    with pytest.raises(InvalidInputError, match="convolutions, and 16 were expected"):
        write_onnx(small_network(), tmp_path, groups=(2, 1, 1))


def test_a_checkpoint_of_tensorflow_is_read(tmp_path):
    tf = pytest.importorskip("tensorflow", reason="tensorflow, which the recipe needs, is not installed").compat.v1
    weights = small_network()
    with tf.Graph().as_default(), tf.Session() as session:
        made = [tf.Variable(array, name=name) for name, array in weights.items()]
        others = [tf.Variable(1.0, name=name) for name in ("global_step", "base_model/conv2d/kernel/Momentum")]
        session.run(tf.global_variables_initializer())
        saved = tf.train.Saver([*made, *others]).save(session, str(tmp_path / "model.ckpt"), global_step=7)
    read = read_checkpoint(saved)
    assert set(read) == set(weights)
    assert all(np.array_equal(read[name], array) for name, array in weights.items())
    images = np.random.default_rng(1).integers(256, size=(1, SIZE, SIZE, 3), dtype=np.uint8)
    folders = [
        write_onnx(one, tmp_path / name, groups=GROUPS, size=SIZE) for one, name in ((read, "a"), (weights, "b"))
    ]
    first, second = (find_extractor(str(folder))(images) for folder in folders)
    assert first.tobytes() == second.tobytes()

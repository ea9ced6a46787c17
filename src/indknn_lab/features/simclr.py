"""SimCLRv2 (Chen et al. 2020) as an ONNX model, made from TensorFlow's checkpoint. The paper uses its 4096 features.

    python -m indknn_lab.features.simclr r50_2x_sk0/model.ckpt-250228 models/simclr
    indknn extract images.npz -o features.npz --model models/simclr

Reading the checkpoint needs TensorFlow (`pip install tensorflow-cpu`), writing the model `pip install onnx`, and using
it only `indknn[onnx]`. Networks without selective kernels (names that end in `sk0`) of any depth and width are known.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.features import needs

Weights = Mapping[str, npt.NDArray[Any]]
GROUPS = {16: (3, 4, 6, 3), 33: (3, 4, 23, 3), 50: (3, 8, 36, 3)}
"""The blocks in each of the four groups of a ResNet, by their number: ResNet-50, 101 and 152."""
_EPSILON = 1e-5
_STEM, _PER_BLOCK = 1, 3


def read_checkpoint(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """The variables of the network in a checkpoint."""
    reader = needs("tensorflow").train.load_checkpoint(str(path))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("base_model/")]
    return {name: np.asarray(reader.get_tensor(name)) for name in names if "Momentum" not in name}


def write_onnx(weights: Weights, folder: Path, *, groups: tuple[int, ...] | None = None, size: int = 224) -> Path:
    """Write `model.onnx` for pooled features, and the file that says how images are scaled: values from 0 to 1."""
    net = _Network(weights)
    if groups is None:
        blocks = (net.n_convolutions - _STEM - 4) // _PER_BLOCK
        if blocks not in GROUPS:
            raise InvalidInputError(f"a ResNet-50, 101 or 152 without selective kernels is needed, got {blocks} blocks")
        groups = GROUPS[blocks]
    at = net("Relu", net.convolution("pixels", 2))
    at = net("MaxPool", at, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    for group, blocks in enumerate(groups):
        for block in range(blocks):
            at = net.block(at, stride=2 if group and not block else 1, projected=not block)
    if net.used != net.n_convolutions:
        raise InvalidInputError(f"the network has {net.n_convolutions} convolutions, and {net.used} were expected")
    folder.mkdir(parents=True, exist_ok=True)
    net.save(folder / "model.onnx", net("Flatten", net("GlobalAveragePool", at)), size)
    scaling = {"size": {"height": size, "width": size}, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(scaling), encoding="utf-8")
    return folder


class _Network:
    """An ONNX graph that takes the convolutions of the checkpoint one after the other, as they were made."""

    def __init__(self, weights: Weights):
        self._onnx = needs("onnx")
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self.n_convolutions = sum(bool(re.fullmatch(r"base_model/conv2d(_\d+)?/kernel", name)) for name in weights)
        self.used, self.width = 0, 0

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node. Returns the name of its output."""
        name = f"{kind}{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def convolution(self, at: str, stride: int) -> str:
        """The next convolution with its batch normalisation. Both are one linear map, so they become one node."""
        ending = f"_{self.used}" if self.used else ""
        kernel = self._of(f"base_model/conv2d{ending}/kernel")
        gamma, beta, mean, variance = (
            self._of(f"base_model/batch_normalization{ending}/{part}")
            for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        scale = gamma / np.sqrt(variance + _EPSILON)
        names = [self._constant(array) for array in ((kernel * scale).transpose(3, 2, 0, 1), beta - mean * scale)]
        self.used, self.width = self.used + 1, len(beta)
        around = (kernel.shape[0] - 1) // 2
        return self("Conv", at, *names, strides=[stride] * 2, pads=[around] * 4)

    def block(self, at: str, *, stride: int, projected: bool) -> str:
        """A bottleneck: three convolutions, and what they are added to. The first block of a group projects that."""
        beside = self.convolution(at, stride) if projected else at
        inner = self("Relu", self.convolution(at, 1))
        inner = self("Relu", self.convolution(inner, stride))
        return self("Relu", self("Add", self.convolution(inner, 1), beside))

    def save(self, path: Path, out: str, size: int) -> None:
        """Write the graph, from pixels to `out`."""
        helper, floats = self._onnx.helper, self._onnx.TensorProto.FLOAT
        pixels = helper.make_tensor_value_info("pixels", floats, [1, 3, size, size])
        features = helper.make_tensor_value_info(out, floats, [1, self.width])
        graph = helper.make_graph(self._nodes, "simclr", [pixels], [features], self._constants)
        opset = [helper.make_opsetid("", 17)]
        self._onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), str(path))

    def _of(self, name: str) -> npt.NDArray[np.float64]:
        if name not in self._weights:
            raise InvalidInputError(
                f"the checkpoint has no {name}: is it a SimCLRv2 network without selective kernels?"
            )
        return np.asarray(self._weights[name], dtype=np.float64)

    def _constant(self, array: npt.NDArray[Any]) -> str:
        name = f"w{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(array.astype(np.float32), name))
        return name


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m indknn_lab.features.simclr CHECKPOINT FOLDER")
    print(write_onnx(read_checkpoint(sys.argv[1]), Path(sys.argv[2])))

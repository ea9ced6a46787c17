"""Public feature extractors for texts and images: functions from items to rows of numbers.

They must be public. The privacy guarantee starts with the features. If an extractor was trained or tuned on the private
items, every query could reveal something about them, and no budget would cover it. Large libraries are imported on
first use. `indknn_lab.features` has the image extractors of the paper, and a cache for what was extracted.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from indknn.errors import IndKNNError, InvalidInputError, to_install

Items: TypeAlias = npt.NDArray[Any] | Sequence[Any]
Features: TypeAlias = npt.NDArray[np.float32]
_MEAN, _STD, _SIZE = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 224
_LONGEST = 512  # the most tokens, if the model does not say
_KNOWN = {"all-roberta-large-v1": 1024, "all-mpnet-base-v2": 768, "all-MiniLM-L6-v2": 384}


@runtime_checkable
class Extractor(Protocol):
    """Turns images or texts into float32 features, one row per item. It gets private items one at a time (rule 1).

    Extractors that give different features must have different names, because the cache uses `name` as a key.
    """

    @property
    def name(self) -> str:
        """A short name that can be part of a file name. It says which weights, layer and preprocessing are used."""
        ...

    @property
    def n_features(self) -> int:
        """The length of a row."""
        ...

    def __call__(self, batch: Items) -> Features:
        """The features of these items."""
        ...


def needs(module: str, extra: str = "features") -> Any:
    """Import a large library when it is first used. If it is not installed, the error names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise IndKNNError(f"{to_install(module, extra, 'this extractor')} ({error})") from None


def with_prompt(name: str, prompt: str | None) -> str:
    """The name of an extractor with a prompt. Another prompt gives other features, so the name has its digest.

    >>> with_prompt("words", None), with_prompt("words", "classify: ")
    ('words', 'words-8eba9cdd')
    """
    return name if prompt is None else f"{name}-{hashlib.blake2b(prompt.encode(), digest_size=4).hexdigest()}"


# From a folder with an ONNX model (`pip install 'indknn[onnx]'`), without PyTorch. Every item goes through the network
# separately, without padding, on one thread. So the features of an item never depend on another item (rule 1), and
# public and private items get the same bits.


def model_file(folder: Path) -> Path | None:
    """The ONNX file of a model in this folder, if there is one."""
    found = (folder / "model.onnx", folder / "onnx" / "model.onnx")
    return next((path for path in found if path.is_file()), None)


class OnnxExtractor(ABC):
    """The base of both kinds: the network, its name and the length of its features."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        found = model_file(self.folder)
        if found is None:
            raise InvalidInputError(f"{self.folder} must hold model.onnx or onnx/model.onnx")
        self.file = found

    @cached_property
    def name(self) -> str:
        """The name of the folder and a digest of the weights."""
        with self.file.open("rb") as file:
            return f"{self.folder.resolve().name}-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"

    @cached_property
    def n_features(self) -> int:
        """The length of a row."""
        return len(self._one(self._sample()))

    def __call__(self, batch: Items) -> Features:
        """The features of these items. Each is computed separately."""
        rows = [self._one(item) for item in batch]
        return np.stack(rows) if rows else np.zeros((0, self.n_features), dtype=np.float32)

    @abstractmethod
    def _one(self, item: Any) -> npt.NDArray[np.float32]:
        """The features of one item."""

    @abstractmethod
    def _sample(self) -> Any:
        """Any item. Its features show how long a row is."""

    @cached_property
    def _network(self) -> Any:
        runtime = needs("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.use_deterministic_compute = True
        return runtime.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])

    def _settings(self, name: str) -> dict[str, Any]:
        """The contents of a JSON file of the model. Empty if there is no such file."""
        path = self.folder / name
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


class OnnxText(OnnxExtractor):
    """Sentence embeddings of length one, from the model and `tokenizer.json` in a folder.

    The states of all tokens are averaged. If `1_Pooling/config.json` says so, the state of the first token is used.
    `prompt` as for `SentenceTransformer`: a name in `config_sentence_transformers.json`, or a text.
    """

    def __init__(self, folder: str | Path, prompt: str | None = None):
        super().__init__(folder)
        self.prompt = prompt

    @cached_property
    def name(self) -> str:
        """The name of the folder and a digest of the weights, and of the prompt if there is one."""
        return with_prompt(super().name, self.prompt)

    @cached_property
    def _before(self) -> str:
        named = self._settings("config_sentence_transformers.json").get("prompts", {})
        return str(named.get(self.prompt, self.prompt or ""))

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = needs("tokenizers", "onnx").Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(int(self._settings("sentence_bert_config.json").get("max_seq_length") or _LONGEST))
        return tokenizer

    @cached_property
    def _takes_first(self) -> bool:
        return bool(self._settings("1_Pooling/config.json").get("pooling_mode_cls_token"))

    def _sample(self) -> str:
        return "text"

    def _one(self, item: Any) -> npt.NDArray[np.float32]:
        tokens = self._tokenizer.encode(f"{self._before}{item}")
        given = {"input_ids": tokens.ids, "attention_mask": tokens.attention_mask, "token_type_ids": tokens.type_ids}
        wanted = [one.name for one in self._network.get_inputs()]
        inputs = {name: np.array([given[name]], dtype=np.int64) for name in wanted}
        states = np.asarray(self._network.run(None, inputs)[0][0], dtype=np.float64)
        row = states if states.ndim == 1 else states[0] if self._takes_first else states.mean(axis=0)
        return np.asarray(row / max(float(np.sqrt((row * row).sum())), 1e-12), dtype=np.float32)


class OnnxImage(OnnxExtractor):
    """Features of images, from the model in a folder. `preprocessor_config.json` gives the image size and scaling.

    If the network returns a state for every patch, the first state is used. If it returns a map, its mean is used.
    """

    def _sample(self) -> Any:
        return np.zeros((8, 8, 3), dtype=np.uint8)

    def _one(self, item: Any) -> npt.NDArray[np.float32]:
        image, about = needs("PIL.Image", "onnx"), self._settings("preprocessor_config.json")
        size = about.get("size", _SIZE)
        if isinstance(size, dict):
            size = size.get("height") or size.get("shortest_edge") or _SIZE
        shown = image.fromarray(as_rgb(np.asarray(item)[None])[0])
        pixels = np.asarray(shown.resize((int(size), int(size)), image.Resampling.BICUBIC), dtype=np.float32) / 255.0
        mean, std = (np.float32(about.get(name, usual)) for name, usual in (("image_mean", _MEAN), ("image_std", _STD)))
        chosen = np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1)[None], dtype=np.float32)
        (name,) = (one.name for one in self._network.get_inputs())
        out = np.asarray(self._network.run(None, {name: chosen})[0][0], dtype=np.float32)
        return out if out.ndim == 1 else out[0] if out.ndim == 2 else out.reshape(len(out), -1).mean(axis=1)


def as_rgb(batch: Items) -> npt.NDArray[np.uint8]:
    """uint8 images as an array of shape (n, height, width, 3). Grey images get three equal channels.

    >>> as_rgb(np.zeros((2, 28, 28), dtype=np.uint8)).shape
    (2, 28, 28, 3)
    """
    images = np.asarray(batch)
    if images.dtype != np.uint8:
        raise InvalidInputError(f"images must be uint8, got {images.dtype}")
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=3)
    if images.ndim != 4 or images.shape[3] != 3:
        raise InvalidInputError(f"images must have shape (n, height, width[, 3]), got {images.shape}")
    return images


class SentenceTransformer:
    """Sentence embeddings of length one. The paper's model is ``all-roberta-large-v1``, with 1024 features.

    `model` is a name known to the sentence-transformers library, or a folder that holds such a model. `name` is the
    name in the cache, by default the last part of `model`. `prompt` says what the task is, to models that were trained
    so: one of the model's own prompts by name, or a text that is put before every text.

    >>> SentenceTransformer().name, SentenceTransformer().n_features
    ('all-roberta-large-v1', 1024)
    """

    def __init__(
        self,
        model: str | Path = "all-roberta-large-v1",
        *,
        name: str | None = None,
        device: str | None = None,
        prompt: str | None = None,
    ):
        self.model = str(model)
        self.known = Path(model).name if name is None else name
        self.name = with_prompt(self.known, prompt)
        self.device = device
        self.prompt = prompt

    @property
    def n_features(self) -> int:
        """The length of a row. It is known for the usual models. Other models are loaded to find it."""
        return _KNOWN.get(self.known) or int(self._network.get_sentence_embedding_dimension())

    @cached_property
    def _network(self) -> Any:
        return needs("sentence_transformers").SentenceTransformer(self.model, device=self.device)

    def __call__(self, batch: Items) -> Features:
        """The embeddings of these texts."""
        texts = [str(text) for text in batch]
        more: dict[str, Any] = {"normalize_embeddings": True, "show_progress_bar": False}
        if self.prompt is not None:
            more["prompt_name" if self.prompt in self._network.prompts else "prompt"] = self.prompt
        out = self._network.encode(texts, batch_size=len(texts), **more)
        return np.asarray(out, dtype=np.float32)


@lru_cache(maxsize=8)
def find_extractor(model: str, prompt: str | None = None) -> Extractor:
    """The extractor with this name or in this folder. It is loaded once. A folder needs no internet connection.

    A folder with an ONNX file runs without PyTorch. Allowed names are those that the sentence-transformers library
    knows. `prompt` is for models of texts that are told their task.

    >>> find_extractor("all-MiniLM-L6-v2").n_features
    384
    """
    folder = Path(model)
    if not folder.is_dir():
        if not model or folder.is_absolute() or model.startswith("."):
            raise InvalidInputError(f"{model!r} must be the name of a model, or a folder that holds one")
        return SentenceTransformer(model, prompt=prompt)
    if model_file(folder) is not None:
        return OnnxText(folder, prompt) if (folder / "tokenizer.json").is_file() else OnnxImage(folder)
    if not (folder / "config.json").is_file():
        raise InvalidInputError(f"{folder} must hold model.onnx, or a model of sentence-transformers or transformers")
    return SentenceTransformer(folder, prompt=prompt)

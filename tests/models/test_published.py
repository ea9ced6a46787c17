"""The published model answers as the one in the store; what must not be published is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from conftest import blobs
from helpers.commands import run
from indknn import IndKNNClassifier, PrivacyError
from indknn.core import accounting
from indknn.errors import InvalidInputError
from indknn.ledger.figures import model_promise
from indknn.models.shared_model import LEAST_ROWS
from indknn.published import document, network, write_model
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.verify import problems
from indknn.tables import Category, Date, Number, Ordered, Schema, YesNo
from server.serving import application

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "publish-model.md"
CODE = {
    name: code
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    for name in ("def likely", "def vector")
    if name in code
}


@pytest.fixture(scope="module")
def reader():
    """The functions of the page, as a reader would copy them."""
    names = {}
    exec(CODE["def likely"].partition("published =")[0], names)
    exec(CODE["def vector"], names)
    return names


def sample(d, n, seed, classes=3):
    X, y = blobs(n, classes, d, seed=seed, spread=1.4)
    return X, y


MODELS = {
    "bent, few features": (6, 3000, 300, False, {}),
    "wide": (150, 1500, 300, False, {}),
    "no public rows": (6, 1500, 0, False, {}),
    "labelled public rows": (6, 3000, 400, True, {}),
    "centred, other labels": (5, 800, LEAST_ROWS + 10, False, {"center": [0.3] * 5}),
}


@pytest.fixture(scope="module", params=MODELS)
def trained(request):
    d, n, rows, labelled, more = MODELS[request.param]
    X, y = sample(d, n + rows + 200, 5)
    public = None if not rows else (X[:rows], y[:rows]) if labelled else X[:rows]
    model = IndKNNClassifier(epsilon=2, classes=[0, 1, 2], public=public, **more).fit(
        X[rows : rows + n], y[rows : rows + n]
    )
    Q = np.concatenate([X[rows + n :], np.random.default_rng(1).normal(size=(200, d)) * 2.0])
    model.predict(Q[:40])
    return model, Q


def alone(model, Q):
    """Probabilities and labels of the released model without votes."""
    memory = model._memory
    shown, values = memory.shown_to(), memory.settings.quantise(Q, "Q").values
    return shown.probabilities(values), memory.settings.class_array[shown.scores(values)[0].argmax(axis=1)]


def test_onnx_and_json_answer_as_the_released_model(trained, reader, tmp_path):
    model, Q = trained
    expected, labels = alone(model, Q)
    for name in ("model.onnx", "model.json"):
        model.export(tmp_path / name, with_queries=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    answered, likely = session.run(None, {"features": Q})
    np.testing.assert_array_equal(answered, labels)
    np.testing.assert_allclose(likely, expected, atol=1e-12)
    published = json.loads((tmp_path / "model.json").read_text())
    likely = reader["likely"](published, Q)
    np.testing.assert_allclose(likely, expected, atol=1e-12)
    np.testing.assert_array_equal(np.array(published["classes"])[likely.argmax(axis=1)], labels)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["promise"]) == published["promise"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", json.loads(about["made"]))


def test_where_the_average_over_public_rows_answers(trained, reader):
    """Each kind of model answers, whichever its card has chosen."""
    model, Q = trained
    memory = model._memory
    shown = memory.shown_to()
    if shown.rule.neighbours is None:  # without enough public rows there is no other model
        return
    memory.predictor.model.shown = replace(shown, card=replace(shown.card, other=not shown.card.other))
    try:
        expected, labels = alone(model, Q)
        made = document(memory, with_queries=True)
    finally:
        memory.predictor.model.shown = shown
    np.testing.assert_allclose(reader["likely"](made, Q), expected, atol=1e-12)
    answered, likely = onnxruntime.InferenceSession(network(made)).run(None, {"features": Q})
    np.testing.assert_allclose(likely, expected, atol=1e-12)
    np.testing.assert_array_equal(answered, labels)


SCHEMA = Schema(
    {
        "age": Number(bounds=(0, 100), knots=(30, 60)),
        "wage": Number(bounds=(1, 1e6), scale="log", missing=1000),
        "since": Date(bounds=("2020-01-01", "2026-01-01"), missing="refuse"),
        "job": Category(values=("baker", "cook"), shares=(0.3, 0.5)),
        "town": Category(values=("Ulm", "Bonn"), missing="Ulm"),
        "grade": Ordered(values=("low", "mid", "high")),
        "smokes": YesNo(share=0.2),
        "cat": YesNo(missing="refuse"),
    },
    label="ill",
    classes=("no", "yes"),
    owner="who",
)


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    gaps = lambda values: [None if rng.random() < 0.1 else v for v in values]  # noqa: E731
    days = rng.integers(18262, 20454, n)
    return {
        "age": gaps(rng.uniform(-5, 110, n).tolist()),
        "wage": gaps(np.exp(rng.uniform(0, 14, n)).tolist()),
        "since": [str(np.datetime64(int(day), "D")) for day in days],
        "job": gaps(rng.choice(["baker", "cook", "astronaut"], n).tolist()),
        "town": gaps(rng.choice(["Ulm", "Bonn", "Rom"], n).tolist()),
        "grade": gaps(rng.choice(["low", "mid", "high", "none"], n).tolist()),
        "smokes": gaps(rng.choice(["yes", "no"], n).tolist()),
        "cat": rng.choice(["yes", "no"], n).tolist(),
    }


def test_the_encoding_of_a_table_is_in_the_file(reader, tmp_path):
    columns = table(600)
    sick = [age is not None and age > 50 for age in columns["age"]]
    records = {**columns, "ill": np.where(sick, "yes", "no").tolist(), "who": [f"p{i}" for i in range(600)]}
    public = table(200, 1)
    path = tmp_path / "t.store"
    model = IndKNNClassifier(epsilon=4, schema=SCHEMA, public=public, store=path).fit(records)
    model.warm_up()
    queries = table(150, 2)
    rows = SCHEMA.encode(queries)
    expected, labels = alone(model, rows)
    explained = model.explain(queries)
    model._engine.close()

    shown = run("export", "model", path, "-o", tmp_path / "model.json", "--json", code=0)
    published = json.loads((tmp_path / "model.json").read_text())
    assert json.loads(shown.output)["epsilon"] == published["promise"]["epsilon"] < 4
    plain = [dict(zip(queries, values, strict=True)) for values in zip(*queries.values(), strict=True)]
    for row in plain:
        row["since"] = int(np.datetime64(row["since"], "D").astype(int))
    vectors = np.array([reader["vector"](published["encoding"], row) for row in plain])
    np.testing.assert_allclose(vectors, rows, atol=1e-12)
    assert (np.array(published["classes"])[reader["likely"](published, rows).argmax(axis=1)] == labels).all()
    run("export", "model", path, "-o", tmp_path / "model.onnx", code=0)
    answered, _ = onnxruntime.InferenceSession(str(tmp_path / "model.onnx")).run(None, {"features": rows})
    assert answered.tolist() == labels.tolist()

    assert [one.label for one in explained] == labels.tolist()
    for one, p in zip(explained, expected, strict=True):
        assert set(one.columns) == set(SCHEMA.used)
        assert one.lead == pytest.approx(abs(np.log(p[0] / p[1])))
        assert one.average + sum(one.columns.values()) == pytest.approx(one.lead, abs=1e-9)
    sizes = {name: np.mean([abs(one.columns[name]) for one in explained]) for name in SCHEMA.used}
    assert max(sizes, key=sizes.get) == "age"  # the label follows from it alone
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({**row, "since": s}) + "\n" for row, s in zip(plain[:3], queries["since"], strict=False))
    )
    told = json.loads(run("explain", path, tmp_path / "q.jsonl", "--json", code=0).output)
    assert [one["label"] for one in told] == labels[:3].tolist()
    assert "an average row" in run("explain", path, tmp_path / "q.jsonl", code=0).output


def test_an_explanation_is_additive_and_free(trained):
    model, Q = trained
    before = model.privacy_spent().tolist()
    _, labels = alone(model, Q)
    for one, label in zip(model.explain(Q[:10]), labels, strict=False):
        assert one.label == label
        assert one.average + sum(one.columns.values()) == pytest.approx(one.lead, abs=1e-9)
    assert model.privacy_spent().tolist() == before


X, Y = blobs(900, 2, 6, seed=2)
OWNERS = [f"p{i}" for i in range(700)]


def made(tmp_path, **more):
    store = Store.create(tmp_path / "s.store", Settings.of(6, ("no", "yes"), **more))
    store.declare_public(X[700:])
    store.add(X[:700], np.array(["no", "yes"])[Y[:700]], OWNERS)
    return store


def test_the_promise_is_of_the_part_that_trains(tmp_path):
    with made(tmp_path, epsilon=1.0, model_share=0.5) as store:
        store.predict(X[:1])
        found = store.publish()["promise"]
        assert found["budget"] == store.settings.shared_budget
        assert found["epsilon"] == accounting.epsilon(store.settings.shared_budget, 1e-5, "gdp") < 1.0
        store.engine.ledger.joint = True  # as if queries had decided when to train
        assert model_promise(store.engine).epsilon == 1.0


def test_with_one_bound_for_all_only_that_is_promised(tmp_path):
    with made(tmp_path, epsilon=1.0, global_epsilon=3.0) as store:
        store.predict(X[:1])
        assert store.publish()["promise"]["epsilon"] == 3.0


def test_after_it_was_published_no_analyst_is_promised_less_than_it_costs(tmp_path):
    """Everybody may have seen the model, also an analyst who is declared later."""
    with made(tmp_path) as store:
        store.predict(X[:1])
        store.limit_analyst("before", 0.99)
        least = store.publish()["promise"]["epsilon"]
    with Store(tmp_path / "s.store") as store:  # also after it was opened again, and after a purge
        store.purge()
        for name in ("late", "before"):
            with pytest.raises(InvalidInputError, match="the shared model, which was published"):
                store.add_analyst(name, 0.1)
        assert "late" not in store.analysts
        assert store.add_analyst("late", (1.0 + least) / 2)
        for _ in range(2):
            store.publish()
        assert [entry.kind for entry in entries(store.db)].count("publish") == 1
        assert not list(problems(store))


def test_what_must_not_be_published_is_refused(tmp_path):
    with made(tmp_path) as store:
        with pytest.raises(InvalidInputError, match="not trained yet"):
            store.publish()
        with pytest.raises(InvalidInputError, match="must end in"):
            write_model({}, tmp_path / "model.bin")
        store.limit_analyst("bob", 0.1)
        store.predict(X[:1])
        with pytest.raises(PrivacyError, match="promised less"):
            store.publish()
        with pytest.raises(InvalidInputError, match="not for this analyst"):
            store.explain(X[:1], "bob")
    seeded = IndKNNClassifier(random_state=0, classes=[0, 1], public=X[700:]).fit(X[:700], Y[:700])
    seeded.warm_up()
    with pytest.raises(PrivacyError, match="random_state"):
        seeded.export(tmp_path / "model.json")
    votes = IndKNNClassifier(mode="votes", classes=[0, 1], tau=0.4).fit(X, Y)
    with pytest.raises(InvalidInputError, match="mode='votes'"):
        votes.export(tmp_path / "model.json")


def test_queries_are_published_only_on_request(tmp_path):
    model = IndKNNClassifier(epsilon=8, classes=[0, 1]).fit(X[:700], Y[:700])
    model.predict(X[700:])
    shown = model._memory.shown_to()
    model._memory.predictor.model.shown = replace(shown, card=replace(shown.card, other=True))
    with pytest.raises(InvalidInputError, match="whole queries"):
        model.export(tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()
    model.export(tmp_path / "model.json", with_queries=True)


def test_a_server_gives_it_to_a_curator(tmp_path):
    with made(tmp_path) as store:
        store.predict(X[:1])
        with application(store, roles=["curator", "analyst"]) as client:
            assert client("GET", "/v1/model", client.keys["analyst"]).status_code == 403
            given = client("GET", "/v1/model", client.keys["curator"]).json()
        assert given == json.loads(json.dumps(store.publish()))
        assert sum(given["shares"]) == pytest.approx(1.0)


def test_a_model_in_memory_that_was_published_stays_published(tmp_path):
    """Whoever was promised less afterwards, by fitting again, may have seen a model that costs more."""
    X, y = blobs(300, 3, 6)
    model = IndKNNClassifier(classes=[0, 1, 2], tau=0.3, public=X[200:])
    model.fit(X[:200], y[:200], owners=range(200))
    model.warm_up()
    model.set_params(analysts={"eve": 0.5}).fit(X[:200], y[:200], owners=range(200))  # nothing was published
    model.set_params(analysts={}).fit(X[:200], y[:200], owners=range(200))
    model.warm_up()
    model.export(tmp_path / "model.json")
    with pytest.raises(PrivacyError, match="'eve' cannot be promised so little: the shared model was published"):
        model.set_params(analysts={"eve": 0.5}).fit(X[:200], y[:200], owners=range(200))
    model.set_params(analysts={"eve": 0.99}).fit(X[:200], y[:200], owners=range(200))


def test_a_store_publishes_only_where_it_is_written_down(tmp_path):
    store = Store.create(tmp_path / "a.store", Settings(6, (0, 1, 2)))
    with store, pytest.raises(InvalidInputError, match=r"use Store\.publish"):
        document(store.engine)

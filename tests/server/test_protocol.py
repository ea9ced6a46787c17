"""The Open Inference Protocol v2 as its own clients speak it, in their defaults, and byte by byte."""

import asyncio
import json
import struct

import numpy as np
import pytest

from indknn.errors import StoreError
from indknn.server.wire import NUMBERS
from indknn.store import Store
from indknn.store.keyfile import create, keys_path
from server.serving import FEATURES, INFER, Server, application, make_store, question, rows, tensor

V1 = "/v2/models/indknn/versions/1"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A real server, and the headers of an analyst."""
    path = tmp_path_factory.mktemp("protocol") / "a.store"
    make_store(path).close()
    _, key = create(keys_path(path), "analyst", "alice", max_queries=100_000)
    with Server(path) as server:
        server.headers = {"Authorization": f"Bearer {key}"}
        yield server


@pytest.fixture
def triton(served):
    http = pytest.importorskip("tritonclient.http")
    with http.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        yield client


def tensor_of(triton_module, X, kind, **how):
    made = triton_module.InferInput("features", list(X.shape), kind)
    made.set_data_from_numpy(X, **how)
    return made


@pytest.mark.parametrize(("kind", "dtype"), [("FP32", np.float32), ("FP64", np.float64), ("INT64", np.int64)])
def test_triton_asks_in_its_defaults(served, triton, kind, dtype):
    from tritonclient import http

    X = (rows(1, 3) * 100).astype(dtype)
    result = triton.infer("indknn", [tensor_of(http, X, kind)], headers=dict(served.headers), request_id=f"t-{kind}")
    labels = result.as_numpy("label")
    assert labels.shape == (3,)
    assert set(labels) <= {b"a", b"b", b"c"}
    assert result.get_response()["id"] == f"t-{kind}"
    assert "binary_data_size" in result.get_output("label")["parameters"]  # its default is binary, both ways
    in_json = triton.infer(
        "indknn",
        [tensor_of(http, X, kind, binary_data=False)],
        model_version="1",
        outputs=[http.InferRequestedOutput("label", binary_data=False)],
        headers=dict(served.headers),
    )
    assert in_json.as_numpy("label").astype(bytes).tolist() == labels.tolist()  # a free repeat


def test_triton_gets_the_ids_of_its_rows_back(served, triton):
    from tritonclient import http

    X, own = tensor_of(http, rows(1, 3), "FP32"), http.InferInput("id", [3], "BYTES")
    own.set_data_from_numpy(np.array(["x", "ü", "7"], dtype=object))
    for outputs in (
        None,
        [http.InferRequestedOutput("label")],
        [http.InferRequestedOutput("label", binary_data=False)],
    ):
        for inputs in ([X, own], [own, X]):
            result = triton.infer("indknn", inputs, outputs=outputs, headers=dict(served.headers))
            ids = [one.decode() if isinstance(one, bytes) else one for one in result.as_numpy("id").tolist()]
            assert ids == ["x", "ü", "7"]
            assert result.as_numpy("label").shape == (3,)


def test_triton_is_told_what_is_wrong(served, triton):
    from tritonclient import http
    from tritonclient.utils import InferenceServerException

    good = [tensor_of(http, rows(1), "FP32")]
    for model, inputs, outputs, status, text in (
        ("other", good, None, "404", "there is no model 'other'"),
        ("indknn", [tensor_of(http, rows(1)[:, :3], "FP32")], None, "422", "4 features per row"),
        (
            "indknn",
            good,
            [http.InferRequestedOutput("scores")],
            "422",
            "must be 'label', 'probabilities' or 'intervals', each once, got 'scores'",
        ),
        ("indknn", good, [http.InferRequestedOutput("label", class_count=2)], "422", "'classification'"),
    ):
        with pytest.raises(InferenceServerException, match=text) as told:
            triton.infer(model, inputs, outputs=outputs, headers=dict(served.headers))
        assert told.value.status() == status
    with pytest.raises(InferenceServerException, match="compressed"):
        triton.infer("indknn", good, headers=dict(served.headers), request_compression_algorithm="gzip")
    with pytest.raises(InferenceServerException, match="a key is needed"):
        triton.infer("indknn", good)


def test_triton_reads_the_metadata(served, triton):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    for version in ("", "1"):
        assert triton.is_model_ready("indknn", version, headers=served.headers)
        told = triton.get_model_metadata("indknn", version, headers=served.headers)
        assert told["versions"] == ["1"]
        assert told["inputs"] == [{"name": "features", "datatype": "FP32", "shape": [-1, FEATURES]}]
        assert told["outputs"] == [
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
            {"name": "probabilities", "datatype": "FP64", "shape": [-1, 3]},
        ]
    assert not triton.is_model_ready("indknn", "2", headers=served.headers)


@pytest.mark.parametrize("binary", [True, False])
def test_kserve_asks_in_its_defaults(served, binary):
    kserve = pytest.importorskip("kserve")
    X = rows(4, 2)

    async def run():
        config = kserve.RESTConfig(protocol="v2")
        async with kserve.InferenceRESTClient(config) as client:
            assert await client.is_server_ready(served.url)
            assert await client.is_server_live(served.url)
            assert await client.is_model_ready(served.url, "indknn", headers=served.headers)
            asked = kserve.InferInput("features", list(X.shape), "FP32")
            asked.set_data_from_numpy(X, **({} if binary else {"binary_data": False}))
            wanted = {"parameters": {"binary_data_output": True}} if binary else {}
            request = kserve.InferRequest("indknn", [asked], **wanted)
            answer = await client.infer(served.url, request, "indknn", headers=dict(served.headers))
            with pytest.raises(Exception, match="there is no model 'other'.* '404 Not Found'"):
                await client.infer(served.url, request, "other", headers=dict(served.headers))
            return answer

    answer = asyncio.run(run())
    assert set(answer.outputs[0].data) <= {"a", "b", "c"}
    assert answer.outputs[0].shape == [2]


def binary(X, kind="FP32", more=(), data=None, size=None, **changes):
    """A body with binary data behind its JSON, and its headers."""
    data = np.asarray(X).astype(NUMBERS[kind]).tobytes() if data is None else data
    asked = {**tensor(X, kind), "parameters": {"binary_data_size": len(data) if size is None else size}, **changes}
    asked.pop("data", None)
    head = json.dumps({"inputs": [asked], **dict(more)}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    return {"content": head + data, "headers": headers}


def labels(response):
    assert response.status_code == 200, response.text
    return response.json()["outputs"][0]["data"]


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_kind_of_number_asks_the_same_thing(client, kind):
    X = np.array([[3, 1, 0, 2], [0, 100, 7, 7]])
    first = labels(client("POST", INFER, json={"inputs": [tensor(X, "FP64")]}))
    assert labels(client("POST", INFER, json={"inputs": [tensor(X, kind)]})) == first
    assert labels(client("POST", INFER, **binary(X, kind))) == first
    assert labels(client("POST", f"{V1}/infer", **binary(X, kind))) == first
    assert client.app.service.store.db.execute("SELECT count(*) FROM answers").get == 2


@pytest.mark.parametrize(
    ("classes", "datatype", "dtype"),
    [((3, 5), "INT64", "<i8"), ((0.5, 2.5), "FP64", "<f8"), ((False, True), "BOOL", "?"), (("a", "bß"), "BYTES", None)],
)
def test_labels_come_in_binary_where_it_is_wanted(tmp_path, classes, datatype, dtype):
    with make_store(tmp_path / "a", n=0, classes=classes) as store, application(store) as client:
        store.add(rows(0, 10), np.array(list(classes) * 5), "each-row")
        in_json = labels(client.ask(rows(1, 6)))
        wanted = {"outputs": [{"name": "label", "parameters": {"binary_data": True}}]}
        for more in (wanted, {"parameters": {"binary_data_output": True}}):
            response = client("POST", INFER, json={**question(rows(1, 6)), **more})
            length = int(response.headers["inference-header-content-length"])
            assert response.headers["content-type"] == "application/octet-stream"
            (output,) = json.loads(response.content[:length])["outputs"]
            data = response.content[length:]
            assert output["datatype"] == datatype
            assert output["parameters"] == {"binary_data_size": len(data)}
            if dtype is None:
                assert data == b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in in_json)
            else:
                assert np.frombuffer(data, dtype).tolist() == in_json
        refused = {
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "label", "parameters": {"binary_data": False}}],
        }
        assert labels(client("POST", INFER, json={**question(rows(1, 6)), **refused})) == in_json


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (binary(rows(1), size=15), "'binary_data_size' is 15, but behind the JSON are 16 bytes"),
        (binary(rows(1), size=-1), "'binary_data_size' is -1"),
        (binary(rows(1), size="16"), "'binary_data_size' is '16'"),
        (binary(rows(1), shape=[2, 4]), "does not have that size"),
        (binary(rows(1), shape=[1 << 60, 1 << 60]), "1 to 1024 rows"),
        (binary(rows(1), "FP32", datatype="FP64"), "does not have that size"),
        (binary(rows(1), "FP32", datatype="BF16"), "'datatype' must be one of"),
        (binary(rows(1), data=b""), "does not have that size"),
        (binary(rows(1), more={"parameters": 7}.items()), "must be an object, got 7"),
        (binary(rows(1), more={"parameters": {"binary_data_output": 1}}.items()), "must be true or false, got 1"),
        (binary(rows(1), more={"outputs": [{"name": "label"}] * 2}.items()), "each once, got 'label'"),
        (binary(rows(1), more={"outputs": [{"name": "label"}] * 3}.items()), "list of one or two objects"),
        (binary(rows(1), more={"outputs": [{"name": [[[]] * 9]}]}.items()), "got a list of 1"),
        (binary(rows(1), parameters={"shared_memory_region": "x"}), "'shared_memory_region' is of an extension"),
        ({**binary(rows(1)), "headers": {"inference-header-content-length": "9999"}}, "9999 bytes of JSON"),
        ({**binary(rows(1)), "headers": {"inference-header-content-length": "-1"}}, "must be a number of bytes"),
        ({"json": question(rows(1)), "headers": {"content-encoding": "gzip"}}, "must not be compressed"),
        ({"json": {"inputs": [{**tensor(rows(1), "INT8"), "data": [1.5, 1, 2, 3]}]}}, "list of whole numbers"),
        ({"json": {"inputs": [{**tensor(rows(1), "INT8"), "data": [128, 1, 2, 3]}]}}, "from -128 to 127"),
        ({"json": {"inputs": [{**tensor(rows(1), "UINT8"), "data": [-1, 1, 2, 3]}]}}, "from 0 to 255"),
        ({"json": {"inputs": [{**tensor(rows(1)), "datatype": "BYTES", "name": "text", "shape": [4]}]}}, "4 texts"),
    ],
)
def test_what_is_not_of_the_protocol_is_refused(client, store, asked, text):
    response = client("POST", INFER, **asked)
    assert 400 <= response.status_code < 500
    assert text in response.json()["error"]
    assert store.db.execute("SELECT count(*) FROM answers").get == 0


def test_a_length_that_is_not_true_starts_no_process(client):
    """What reads long bodies takes seconds to start on a busy machine, and a short body does not need it."""
    response = client("POST", INFER, json=question(rows(1)), headers={"inference-header-content-length": "999999"})
    assert response.status_code == 400
    assert client.app.service.reader._process is None


def test_a_header_of_length_zero_means_rows_alone(client):
    X = rows(5, 2)
    sole = client("POST", INFER, content=X.tobytes(), headers={"inference-header-content-length": "0"})
    assert labels(sole) == labels(client.ask(X))


def test_what_kserve_sends_is_answered(client):
    """Byte by byte what its client makes, for where it is not installed: it names the model, and makes up an id."""
    more = {"id": "6f1c", "model_name": "indknn", "parameters": {"binary_data_output": True}}
    response = client("POST", INFER, **binary(rows(5), more=more.items()))
    length = int(response.headers["Inference-Header-Content-Length"])
    head = json.loads(response.content[:length])
    assert (head["model_name"], head["id"]) == ("indknn", "6f1c")
    assert len(response.content) == length + head["outputs"][0]["parameters"]["binary_data_size"]


def test_versions_are_in_the_paths(client):
    assert client("GET", V1).json() == client("GET", "/v2/models/indknn").json()
    assert client("GET", f"{V1}/ready").json() == {"name": "indknn", "ready": True}
    assert client("POST", f"{V1}/infer", json=question(rows(1))).json()["model_version"] == "1"
    for path in ("/v2/models/indknn/versions/2", "/v2/models/indknn/versions/2/ready", "/v2/models/infer"):
        assert client("GET", path).status_code == 404
    assert client("POST", "/v2/models/indknn/versions/2/infer", json=question(rows(1))).status_code == 404


def letters(texts):
    """A public extractor: how often each of four letters occurs, and one."""
    return np.array([[1.0 + text.count(letter) for letter in "aeio"] for text in texts])


def test_texts_are_asked_where_there_is_an_extractor(store):
    from indknn.server.app import create_app
    from server.serving import Client

    texts = ["aaaa", "eé", "io, said [she]"]
    app = create_app(store, embed=letters)
    try:
        client = Client(app)
        assert client("GET", "/v2/models/indknn").json()["inputs"] == [
            {"name": "text", "datatype": "BYTES", "shape": [-1]}
        ]
        expected = labels(client("POST", INFER, json={"inputs": [tensor(letters(texts), "FP64")]}))
        said = {"name": "text", "datatype": "BYTES", "shape": [3], "data": texts}
        assert labels(client("POST", INFER, json={"inputs": [said]})) == expected
        column = {**said, "shape": [3, 1], "data": [[text] for text in texts]}
        assert labels(client("POST", INFER, json={"inputs": [column]})) == expected
        packed = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
        asked = binary(np.zeros((3, 1)), data=packed, name="text", datatype="BYTES", shape=[3])
        assert labels(client("POST", INFER, **asked)) == expected
        for wrong in (packed[:-1], packed + b"\0\0\0\0", b"\xff" * 12, struct.pack("<I", 1) * 3 + b"\xff"):
            asked = binary(np.zeros((3, 1)), data=wrong, name="text", datatype="BYTES", shape=[3])
            assert client("POST", INFER, **asked).status_code == 422
    finally:
        app.service.close()
    with application(store) as client:
        response = client("POST", INFER, json={"inputs": [said]})
        assert response.status_code == 422
        assert "this model takes numbers" in response.json()["error"]


def test_decisions_that_need_no_model_wait_for_no_further_sync(store, monkeypatch):
    """What they are about was released and written before. Only counts of the shared model may be newer (rule 2)."""
    asked = {**question(rows(1)), "outputs": [{"name": "label"}, {"name": "probabilities"}]}
    decided = {**asked, "parameters": {"min_confidence": 0.5}}
    with application(store) as client:

        def full(store):
            raise StoreError("the disk is full")

        monkeypatch.setattr(Store, "flush", full)
        assert client("POST", INFER, json=asked).status_code == 200
        assert client("POST", INFER, json=decided).status_code == 200
        weighed = {**asked, "parameters": {"class_weight": "balanced"}}
        assert client("POST", INFER, json=weighed).status_code >= 500

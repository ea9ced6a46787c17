"""Tables in the client: every kind of frame, columns by name, long ones in several requests, and clear errors."""

import asyncio
from datetime import date

import httpx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from indknn.client import ApiError, AsyncClient, Client
from indknn.errors import InvalidInputError
from indknn.server.app import create_app
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.keyfile import create, keys_path
from indknn.store.verify import problems
from indknn.tables import Category, Date, Number, Schema, YesNo
from indknn.tables.schema import to_plain
from server.serving import FEATURES, Server, application, make_store, rows, table_store

ASKED = {
    "age": [31.5, 70, 55, None],
    "job": ["cook", "baker", None, "astronaut"],
    "bought": ["secret-label"] * 4,
    "who": ["secret-owner"] * 4,
    "visit": ["w1", "w2", "w3", "w4"],
}
"""A table with everything that a curator's table has. Only age and job are what the question is."""


class Watched(httpx.AsyncBaseTransport):
    """The application in this process. It keeps the requests, and loses the answers that `lose` names by number."""

    def __init__(self, app, lose=()):
        self.inner, self.lose, self.requests = httpx.ASGITransport(app), set(lose), []

    async def handle_async_request(self, request):
        response = await self.inner.handle_async_request(request)
        self.requests.append(request)
        if request.method == "POST" and sum(one.method == "POST" for one in self.requests) in self.lose:
            raise httpx.ReadError("lost", request=request)
        return response

    def ids(self):
        return [request.headers["x-request-id"] for request in self.requests if request.method == "POST"]


def using(app, work, lose=()):
    """The result of some work with a client of an application, and the transport that it used."""
    transport = Watched(app, lose)

    async def run():
        async with AsyncClient("http://127.0.0.1", transport=transport) as client:
            return await work(client)

    return asyncio.run(run()), transport


@pytest.fixture
def tables(tmp_path):
    with table_store(tmp_path / "t.store") as store, application(store, max_batch=8, max_records=8) as made:
        made.store = store
        yield made
        assert not list(problems(store))


def answered(store):
    return store.db.execute("SELECT count(*) FROM answers").get


def test_every_kind_of_table_asks_the_same_thing(tables):
    expected = tables.store.predict({name: ASKED[name] for name in ("age", "job")}).tolist()
    assert answered(tables.store) == 4
    frame = pd.DataFrame(ASKED)
    by_row = [dict(zip(ASKED, row, strict=True)) for row in zip(*ASKED.values(), strict=True)]
    for table in (
        frame,
        frame[["job", "who", "age"]],  # in any order
        frame.convert_dtypes(),
        frame.rename(columns={"visit": "id"}),  # ids that the schema does not name
        frame.astype({"job": "category"}),
        pl.DataFrame(ASKED),
        pa.table(ASKED),
        pa.table(ASKED).to_batches()[0],
        ASKED,
        {"age": np.array([31.5, 70, 55, np.nan]), "job": np.array(ASKED["job"], dtype=object)},
        by_row,
        tuple(by_row),
    ):
        labels, transport = using(tables.app, lambda client, table=table: client.predict(table))
        assert labels.tolist() == expected, type(table)
        (sent,) = (request.content for request in transport.requests if request.method == "POST")
        assert b"secret" not in sent
        assert b"w1" not in sent
    assert answered(tables.store) == 4  # repeats of the first question


def test_a_text_that_cannot_be_written_is_refused(tables):
    async def ask(client):
        with pytest.raises(ApiError, match="status 400, bad_json"):
            await client.predict({"age": [30], "job": ["\ud800"]})

    using(tables.app, ask)


def test_answers_come_back_as_a_table(tables):
    found, _ = using(tables.app, lambda client: client.predict_table(pd.DataFrame(ASKED)))
    assert list(found) == ["id", "bought", "p_no", "p_yes"]
    assert found["id"] == ASKED["visit"]
    assert np.allclose(found["p_no"] + found["p_yes"], 1)
    again, _ = using(tables.app, lambda client: client.predict_proba(ASKED))
    assert np.array_equal(again, np.column_stack([found["p_no"], found["p_yes"]]))
    without, _ = using(tables.app, lambda client: client.predict_table([{"age": 30, "job": "cook"}] * 2))
    assert without["id"] == [0, 1]


def test_labels_may_be_left_open_or_balanced(tables):
    plain, _ = using(tables.app, lambda client: client.predict_table(ASKED))
    spent = tables.store.spent().sum()
    likely = np.column_stack([plain["p_no"], plain["p_yes"]]).max(axis=1)
    least = float(np.sort(likely)[1])  # one of the four is less likely
    left, _ = using(tables.app, lambda client: client.predict(ASKED, min_confidence=least))
    assert left.tolist() == [str(y) if p >= least else "" for y, p in zip(plain["bought"], likely, strict=True)]
    assert left.tolist().count("") == 1
    assert tables.store.spent().sum() == spent
    with pytest.raises(ApiError, match="class_weight='balanced' needs the counts of a shared model"):
        using(tables.app, lambda client: client.predict_proba(ASKED, class_weight="balanced"))


@pytest.mark.parametrize("lose", [(), (1, 2, 3, 5)])
def test_long_tables_are_sent_in_pieces_that_are_charged_once(tmp_path, lose):
    X, seen = rows(5, 20), []
    with make_store(tmp_path / "a", free_repeats=False) as store, application(store, max_batch=8) as made:
        labels, transport = using(
            made.app,
            lambda client: client.predict(X, request_id="night", progress=lambda *now: seen.append(now)),
            lose,
        )
        assert set(transport.ids()) == {"night/0", "night/1", "night/2"}
        assert len(transport.ids()) == 3 + len(lose)
        assert labels.shape == (20,)
        assert seen == [(8, 20), (16, 20), (20, 20)]
        assert answered(store) == 20
        again, _ = using(made.app, lambda client: client.predict(X, request_id="night"))
        assert again.tolist() == labels.tolist()
        assert answered(store) == 20
        _, transport = using(made.app, lambda client: client.predict(X[:8], request_id="short"))
        assert transport.ids() == ["short"]  # one request keeps its id


def test_a_piece_that_is_refused_names_what_was_answered(tmp_path):
    with make_store(tmp_path / "a", free_repeats=False) as store:
        key = create(keys_path(store.path), "analyst", "ann", max_queries=10)[1]
        with application(store, max_batch=8) as made:

            async def run():
                async with AsyncClient("http://127.0.0.1", key, transport=httpx.ASGITransport(made.app)) as client:
                    with pytest.raises(ApiError, match="8 of 20 rows were answered before") as told:
                        await client.predict(rows(1, 20), request_id="r")
                    assert (told.value.status, told.value.code) == (403, "query_limit")
                    assert "request_id='r'" in str(told.value)
                    assert "\n" not in str(told.value)

            asyncio.run(run())
        assert answered(store) == 8


def test_rows_that_are_too_long_for_one_body_are_sent_in_more(tmp_path):
    with table_store(tmp_path / "t.store") as store, application(store, max_body=20_000) as made:
        people = {"age": [30] * 10, "job": ["x" * 3000] * 10}
        labels, transport = using(made.app, lambda client: client.predict(people, request_id="long"))
        assert len(labels) == 10
        assert transport.ids() == ["long/0", "long/1"]
        assert all(len(request.content) < 20_000 for request in transport.requests)


def test_every_value_arrives_as_the_store_reads_it(tmp_path):
    schema = Schema(
        {
            "n": Number(bounds=(0, 100)),
            "c": Category(values=("1", "2", "x")),
            "d": Date(bounds=("2020-01-01", "2026-01-01")),
            "b": YesNo(),
        },
        label="y",
        classes=("no", "yes"),
    )
    days = pd.to_datetime(["2021-05-06 10:11:12", None, "2025-01-01 00:00:00"])
    frame = pd.DataFrame({"n": [np.inf, np.nan, 7], "c": [1, 2.0, "x"], "d": days, "b": [True, None, False]})
    tables = (
        frame,
        pl.from_pandas(frame.astype({"c": str})),
        pa.Table.from_pandas(frame.astype({"c": str})),
        {"n": [10**30, None, -1], "c": [1, 2, 3], "d": np.array(days), "b": np.array([True, False, True])},
        {"n": np.array([1, 2, 3], "u1"), "c": ["x", "", "1"], "d": [date(2022, 2, 2)] * 3, "b": ["yes", "no", None]},
    )
    settings = Settings(schema.n_features, schema.classes, epsilon=8.0, tau=0.3, mode="votes", schema=to_plain(schema))
    with Store.create(tmp_path / "a", settings) as store, application(store) as made:
        store.add({**tables[-1], "y": ["no", "yes", "no"]}, owners=["a", "b", "c"])
        seen = []
        for i, table in enumerate(tables):
            expected = store.predict(table).tolist()
            seen.append(answered(store))
            labels, _ = using(made.app, lambda client, table=table: client.predict(table))
            assert labels.tolist() == expected
            assert answered(store) == seen[-1], i  # the very same vectors: nothing new was asked


def test_frames_without_a_schema_are_taken_in_their_order(client, store):
    X = rows(1, 3).astype(float)
    expected = store.predict(X).tolist()
    frame = pd.DataFrame(X, columns=list("wxyz"))
    for table in (
        frame.rename(columns={"y": "v"}),
        frame.rename(columns={"y": "v"}).assign(record_id=["a", "b", "c"], owner="p1"),
        pl.from_pandas(frame.rename(columns={"y": "v"})),
        pa.table({"features": pa.array(X.tolist())}),
        {"q": X[:, 0], "r": X[:, 1], "s": X[:, 2], "t": X[:, 3]},
        X.tolist(),
        X,
    ):
        labels, _ = using(client.app, lambda one, table=table: one.predict(table))
        assert labels.tolist() == expected
    found, _ = using(client.app, lambda one: one.predict_table(frame.rename(columns={"y": "v"}).assign(id=[7, 8, 9])))
    assert (found["id"], found["label"].tolist()) == ([7, 8, 9], expected)
    assert answered(store) == 3


def test_texts_in_any_list(store):
    app = create_app(store, embed=lambda texts: np.array([[1.0 + text.count(c) for c in "aeio"] for text in texts]))
    try:
        texts = ["aaaa", "eé", "io, said [she]"]
        first, _ = using(app, lambda client: client.predict(texts))
        for same in (tuple(texts), np.array(texts), pd.Series(texts), pl.Series(texts), pa.array(texts)):
            assert using(app, lambda client, same=same: client.predict(same))[0].tolist() == first.tolist()
        assert answered(store) == 3

        async def odd(client):
            with pytest.raises(InvalidInputError, match="text 1"):
                await client.predict(["fine", "\ud800"])

        using(app, odd)
    finally:
        app.service.close()


class Odd:
    """Something that nobody would ask about."""


WRONG = [
    ("a text", "takes rows of 4 numbers, got str"),
    (None, "takes rows of 4 numbers, got NoneType"),
    (7, "got shape ()"),
    ([1, 2, 3, 4], "got shape (4,)"),
    ([[1, 2, 3]], "got shape (1, 3)"),
    ([[1, 2, 3, 4], [1, 2]], "got values of type object"),
    ([["1", "2", "3", "4"]], "got values of type <U1"),
    ([], "at least one row"),
    (np.zeros((0, FEATURES)), "at least one row"),
    (np.zeros((1, 2, 2)), "got shape (1, 2, 2)"),
    (["some", "texts"], "takes rows of 4 numbers, got texts"),
    (iter([1]), "got values of type object"),
    ({1, 2}, "got values of type object"),
    (Odd(), "got values of type object"),
    ({"a": 1, "b": 2}, "column 'a' must be a list of values"),
    ([{"a": 1}, 7], "a table with column names is needed, got list"),
    ({}, "no column for features"),
    (pd.DataFrame({"a": ["x"], "b": [1], "c": [1], "d": [1]}), "column 'a' must be a number"),
    (pd.DataFrame({"a": [1]}), "got shape (1, 1)"),
]
WRONG_TABLES = [
    ({"age": 30, "job": "cook"}, "column 'age' must be a list of values: for one row"),
    ({"age": [30]}, "column 'job' is missing"),
    ({"age": [30], "job": ["cook"], "agee": [1]}, "column 'agee' is not in the schema"),
    ({"age": [30, 31], "job": ["cook"]}, "the same number of rows"),
    ({"age": [Odd()], "job": ["cook"]}, "row 0: 'age' must be a text, a number, a truth value, a date or a gap"),
    ({"age": [30], "job": [b"cook"]}, "row 0: 'job' must be a text"),
    ({"age": [[30]], "job": ["cook"]}, "row 0: 'age' must be a text"),
    ([{"age": 30, "job": "cook"}, {"age": 30}], "row 1: column 'job' must be in every row"),
    (pd.DataFrame({"age": [], "job": []}), "at least one row"),
    (pd.DataFrame({7: [1]}), "column names must be text"),
    pytest.param(
        pl.LazyFrame({"age": [30], "job": ["cook"]}),
        "a table in memory is needed, got LazyFrame",
        marks=pytest.mark.filterwarnings("ignore::polars.exceptions.PerformanceWarning"),
    ),
    (pd.Series({"age": 30, "job": "cook"}), "got values of type object"),
    (np.array([(30, "cook")], dtype=[("age", "i4"), ("job", "U4")]), "got values of type"),
    ([{"age": 30, "job": "cook"}, None], "a table with column names is needed, got list"),
    ([[30, "cook"]], "a table with the columns age, job, or vectors of"),
    ([[30, 1]], "a table with the columns age, job, or vectors of"),
    (["a", "b"], "a table with the columns age, job, got texts"),
    ("age", "a table with the columns age, job, got str"),
]


@pytest.mark.parametrize(("given", "text"), WRONG)
def test_what_is_wrong_is_told_in_one_line(client, store, given, text):
    refused(client.app, store, given, text)


@pytest.mark.parametrize(("given", "text"), WRONG_TABLES)
def test_what_is_wrong_with_a_table_is_told_in_one_line(tables, given, text):
    refused(tables.app, tables.store, given, text)


def refused(app, store, given, text):
    for method in ("predict", "predict_proba", "predict_table"):

        async def ask(client, method=method):
            with pytest.raises(InvalidInputError) as told:
                await getattr(client, method)(given)
            return str(told.value)

        said, transport = using(app, ask)
        assert text in said
        assert "\n" not in said
        assert all(request.method == "GET" for request in transport.requests)  # nothing was sent
    assert answered(store) == 0


def test_tables_of_records_are_added_by_their_columns(tables):
    store = tables.store
    table = pd.DataFrame(
        {"age": [20, 60], "job": ["cook", None], "bought": ["no", "yes"], "who": ["ann", 17], "visit": ["n1", "n2"]}
    )
    added, _ = using(tables.app, lambda client: client.add(table))
    assert (added["records"], added["added"], added["repeated"]) == (202, 2, False)
    again, _ = using(tables.app, lambda client: client.add(pl.from_pandas(table.astype({"who": str}))))
    assert again["ids"] == added["ids"]  # the same records
    assert (again["added"], again["unchanged"], again["replaced"]) == (0, 2, 0)
    older, _ = using(tables.app, lambda client: client.add(table.assign(age=[21, 60])))
    assert (older["added"], older["unchanged"], older["replaced"]) == (0, 1, 1)
    using(tables.app, lambda client: client.add(table))
    features = table[["age", "job"]]
    apart, _ = using(tables.app, lambda client: client.add(features, ["no", "yes"], ["ann", "17"], ["n1", "n2"]))
    assert apart["unchanged"] == 2
    assert store.engine.ledger.n_owners == 202
    by_row = [{"age": 33, "job": "cook", "bought": "no", "who": "zoe", "visit": "n3"}]
    assert using(tables.app, lambda client: client.add(by_row))[0]["records"] == 203
    vectors = store.schema.encode(features)
    assert using(tables.app, lambda client: client.add(vectors, ["no", "yes"], ["u", "v"]))[0]["records"] == 205


def test_many_records_are_added_in_pieces_and_once(tables):
    seen = []
    table = {
        "age": list(range(20, 40)),
        "job": ["cook"] * 20,
        "bought": ["no"] * 20,
        "who": [f"new-{i}" for i in range(20)],
    }

    def work(client):
        return client.add(table, request_id="load", progress=lambda *now: seen.append(now))

    added, transport = using(tables.app, work, lose=(1, 3))
    assert set(transport.ids()) == {"load/0", "load/1", "load/2"}
    assert seen == [(8, 20), (16, 20), (20, 20)]
    assert (len(set(added["ids"])), added["records"], added["owners"]) == (20, 220, 220)
    assert added["added"] + added["unchanged"] == 20  # pieces whose answers were lost had been added before
    again, _ = using(tables.app, work)
    assert again["repeated"]
    assert again["ids"] == added["ids"]
    table["bought"][12] = "maybe"

    async def wrong(client):
        with pytest.raises(ApiError, match="8 of 20 rows were added before: with request_id='next'"):
            await client.add({**table, "who": [f"next-{i}" for i in range(20)]}, request_id="next")

    using(tables.app, wrong)
    assert len(tables.store.engine.shard) == 228


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (({"age": [1], "job": ["cook"], "who": ["a"]},), "records need labels"),
        (({"age": [1], "job": ["cook"], "bought": ["no"]},), "records need owners"),
        (({"age": [1], "job": ["cook"], "bought": ["no"], "who": ["a"]}, ["no"]), "labels must be given once"),
        (({"age": [1], "job": ["cook"], "bought": ["no"]}, None, ["a", "b"]), "of one length"),
        (({"age": [1], "bought": ["no"], "who": ["a"]},), "column 'job' is missing"),
        ((["a text"], ["no"], ["a"]), "features must be a table"),
        (([[1.0], [1.0, 2.0]], ["no"], ["a"]), "features must be a table"),
        ((None, ["no"], ["a"]), "features must be a table"),
        (([[float("nan")]], ["no"], ["a"]), "features must be a table"),
        (([[1.0]], "no", ["a"]), "'label' must be a list of values"),
        (([[1.0]], ["no"], "ann"), "'owner' must be a list of values"),
    ],
)
def test_wrong_records_are_told_in_one_line(tables, given, text):
    async def add(client):
        with pytest.raises(InvalidInputError) as told:
            await client.add(*given)
        assert text in str(told.value)
        assert "\n" not in str(told.value)

    _, transport = using(tables.app, add)
    assert all(request.method == "GET" for request in transport.requests)


def test_each_row_is_a_person_where_the_caller_says_so(tmp_path):
    with make_store(tmp_path / "a", n=0) as store, application(store, max_records=8) as made:
        added, _ = using(made.app, lambda client: client.add(rows(1, 5), ["a"] * 5, "each-row"))
        assert (added["records"], added["owners"]) == (5, 5)

        async def more(client):
            with pytest.raises(InvalidInputError, match="one request of at most 8 records"):
                await client.add(rows(1, 9), ["a"] * 9, "each-row")
            with pytest.raises(ApiError, match="name the owners") as told:
                await client.add(rows(1, 2), ["a"] * 2, "each-row")
            assert told.value.code == "who_is_who"

        using(made.app, more)


def test_records_are_removed_by_record_id_and_by_owner(tables):
    store = tables.store

    async def work(client):
        gone = await client.remove(record_ids=["v0", "v1"])
        assert (gone["removed"], gone["records"], gone["receipt"]["owners_forgotten"]) == (2, 198, 2)
        gone = await client.remove(owners=["p2", "p3"], record_ids=["v4"], ids=store.engine.shard.record_ids()[-1:])
        assert (gone["removed"], gone["owners"]) == (4, 194)
        for wrong in ({"record_ids": ["v5", "v0"]}, {"record_ids": ["v5"], "ids": [10**9]}, {}):
            with pytest.raises(ApiError) as told:
                await client.remove(**wrong)
            assert told.value.status == 422
        with pytest.raises(ApiError) as told:
            await client.remove(owners=["p5", "nobody"])
        assert (told.value.status, told.value.code) == (404, "unknown_owner")
        for wrong in ({"record_ids": [1.5]}, {"ids": ["x"]}, {"owners": [None]}):
            with pytest.raises(InvalidInputError):
                await client.remove(**wrong)

    using(tables.app, work)
    assert len(store.engine.shard) == 194


def test_a_client_learns_of_a_new_schema(tmp_path):
    """What a client knows of the model may be older than the server."""
    with (
        make_store(tmp_path / "a") as old,
        table_store(tmp_path / "t.store") as new,
        application(old) as before,
        application(new) as after,
    ):

        async def run():
            async with AsyncClient("http://127.0.0.1", transport=httpx.ASGITransport(before.app)) as client:
                assert len(await client.predict(rows(1, 2))) == 2
                client._http._transport = httpx.ASGITransport(after.app)
                assert len(await client.predict(ASKED)) == 4

        asyncio.run(run())


def test_a_table_against_a_real_server(tmp_path):
    path = tmp_path / "t.store"
    table_store(path, free_repeats=False).close()
    key = create(keys_path(path), "analyst", "ann")[1]
    table = pd.DataFrame(ASKED).iloc[[0, 1] * 75]
    with Server(path, "--max-batch", "64") as server:
        with Client(server.url, f"{key}\n") as client:
            found = client.predict_table(table, request_id="çhecked")
            assert len(found["bought"]) == 150
            assert found["id"] == ["w1", "w2"] * 75
            assert client.predict(table, request_id="çhecked").tolist() == found["bought"].tolist()
        assert server.stop() == 0
    with Store(path) as store:
        assert answered(store) == 150
        assert not list(problems(store))

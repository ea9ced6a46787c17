"""The reader of pasted tables, in the browser that runs it."""

import pytest

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

READ = """async ([text, classes, schema]) => {
  const { parseRecords } = await import("/console/columns.js");
  try { return parseRecords(text, { classes, schema }); } catch (error) { return error.message; }
}"""
ASK = """async ([text, schema, takesTexts]) => {
  const { parseQueries } = await import("/console/columns.js");
  try { return parseQueries(text, { schema, takesTexts, width: 2 }); } catch (error) { return error.message; }
}"""
SCHEMA = {
    "label": {"column": "ill"},
    "owner": "patient",
    "columns": {"age": {"kind": "number", "bounds": [0, 99]}, "y": {"kind": "text"}, "id": {"kind": "ignored"}},
}

CASES = [
    ("a,y,owner\n1,x,ann", [], [{"features": [1], "label": "x", "owner": "ann"}]),
    ("\ufeffa,Label\r\n1e-3, 7 \r\n\r\n", [], [{"features": [0.001], "label": 7}]),  # as spreadsheets write it
    ("a,y\n1,7", ["7", "8"], [{"features": [1], "label": "7"}]),
    ("a,y\n1,7", [7, 8], [{"features": [1], "label": 7}]),
    ("Record_ID,a,y,owner\nv1,1,x,ann", [], [{"features": [1], "label": "x", "owner": "ann", "record_id": "v1"}]),
    ('y,owner,a\nx,"a ""b"",\nc",2', [], [{"features": [2], "label": "x", "owner": 'a "b",\nc'}]),
    ('[{"features": [1, 2], "label": true}]', [], [{"features": [1, 2], "label": True}]),
    ('{"records": [{"features": [1], "label": 0}]}', [], [{"features": [1], "label": 0}]),
    ("1,2\n3,4", [], 'The first row must name the columns, and one of them must be "label" or "y".'),
    ("a,y", [], "There must be a row of column names, and rows under it."),
    ("", [], "There must be a row of column names, and rows under it."),
    ("a,a,y\n1,2,x", [], 'The column "a" must not occur twice.'),
    ("a;b;y;owner\n1;2;x;Doe, Jo", [], [{"features": [1, 2], "label": "x", "owner": "Doe, Jo"}]),
    ("a\ty\towner\n1\tx\tann\n", [], [{"features": [1], "label": "x", "owner": "ann"}]),
    ("a|y|owner\n1|x|ann\n", [], [{"features": [1], "label": "x", "owner": "ann"}]),
    ("a,y,owner,\n1,x,ann,\n", [], [{"features": [1], "label": "x", "owner": "ann"}]),  # a separator at each end
    ("a,y\n1", [], "Row 0 has 1 values, but there are 2 names of columns."),
    ("a,y,owner\n1,x,ann\n1,x,", [], "Row 1 has no owner."),
    ("a,y\n,x", [], '"" in row 0, column a is not a number.'),
    ("a,y\nInfinity,x", [], '"Infinity" in row 0, column a is not a number.'),
    ('a,y\n1,"x', [], "A quotation mark is opened and never closed."),
    ('{"a": 1}', [], 'JSON must be a list of records, or {"records": [...]}.'),
    ('[{"label": 1}]', [], 'Record 1 has no list of "features".'),
]


TABLES = [
    (
        '\ufeff"age";y;ill;patient;id\r\n39;"a; ""b""";yes;007;17\r\n;;no;8;\r\n',
        [
            {"values": {"age": "39", "y": 'a; "b"', "id": "17"}, "label": "yes", "owner": "007"},
            {"values": {"age": "", "y": "", "id": ""}, "label": "no", "owner": "8"},
        ],
    ),
    ("age,y,patient\n39,a,ann", 'The first row must name the columns, and one of them must be "ill".'),
    ('[{"features": [1], "label": 1}]', [{"features": [1], "label": 1}]),
    ('[{"values": {"age": 1}, "label": 1}]', [{"values": {"age": 1}, "label": 1}]),
    ('[{"label": 1}]', 'Record 1 has no "values" by column.'),
]
QUERIES = [
    ("age,y,ill\n39,a,yes", SCHEMA, False, {"rows": [{"age": "39", "y": "a"}], "ids": None}),
    (
        "visit;age;y\nv1;39;a",
        {**SCHEMA, "record_id": "visit"},
        False,
        {"rows": [{"age": "39", "y": "a"}], "ids": {"name": "visit", "values": ["v1"]}},
    ),
    ("ID,a,b\n7,1,2\n8,3,4", None, False, {"rows": [[1, 2], [3, 4]], "ids": {"name": "ID", "values": ["7", "8"]}}),
    (
        "record_id,age\nv1,39",
        {**SCHEMA, "record_id": "visit"},
        False,
        {"rows": [{"age": "39"}], "ids": {"name": "record_id", "values": ["v1"]}},
    ),
    ("a,b,c\n1,2,3", None, False, "A query must have 2 columns of numbers, got 3."),
    ("id,note\n7,well", None, True, {"rows": ["well"], "ids": {"name": "id", "values": ["7"]}}),
    ("a,b\n7,well", None, True, 'One of the columns must be "text".'),
    ("__proto__,constructor\n7,8", {"columns": {"__proto__": "number", "age": "number"}}, False, None),
]


def test_records_and_queries_are_found_by_the_names_of_a_schema(house, visit):
    page = visit(house.url).open()
    assert [page.evaluate(READ, [text, [], SCHEMA]) for text, _ in TABLES] == [result for _, result in TABLES]
    told = [page.evaluate(ASK, [text, schema, texts]) for text, schema, texts, _ in QUERIES]
    assert told[:-1] == [result for *_, result in QUERIES[:-1]]
    sent = page.evaluate(
        ASK.replace("return parseQueries", "return JSON.stringify(parseQueries").replace("width: 2 })", "width: 2 }))"),
        [*QUERIES[-1][:3]],
    )
    assert sent == '{"rows":[{"__proto__":"7","constructor":"8"}],"ids":null}'


def test_records_are_read_or_refused_in_a_sentence(house, visit):
    page = visit(house.url).open()
    assert [page.evaluate(READ, [text, classes]) for text, classes, _ in CASES] == [result for *_, result in CASES]

"""The reader of pasted records, in the browser that runs it."""

import pytest

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

READ = """async ([text, classes]) => {
  const { parseRecords } = await import("/console/csv.js");
  try { return parseRecords(text, classes); } catch (error) { return error.message; }
}"""

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
    ("a,y", [], "There is a row of names, but no record under it."),
    ("a,y\n1", [], "Row 2 has 1 values, but the first row has 2."),
    ("a,y,owner\n1,x,ann\n1,x,", [], "Row 3 has no owner."),
    ("a,y\n,x", [], '"" in row 2, column a is not a number.'),
    ("a,y\nInfinity,x", [], '"Infinity" in row 2, column a is not a number.'),
    ('a,y\n1,"x', [], "A quotation mark is opened and never closed."),
    ('{"a": 1}', [], 'JSON must be a list of records, or {"records": [...]}.'),
    ('[{"label": 1}]', [], 'Record 1 has no list of "features".'),
]


def test_records_are_read_or_refused_in_a_sentence(house, visit):
    page = visit(house.url).open()
    assert [page.evaluate(READ, [text, classes]) for text, classes, _ in CASES] == [result for *_, result in CASES]

"""Expiry and holds on the command line."""

import json

import pytest

from helpers.commands import run
from indknn.core import clock
from indknn.store import Store

START = 500_000 * 3600.0  # 2027-01-15 08:00 UTC
TABLE = """\
patient,visit,age,delete_on,y
ann,1,31,2027-01-20,ill
bob,2,45,2027-01-15T10:30,healthy
bob,3,46,,healthy
carl,4,60,2027-01-15,ill
"""


@pytest.fixture
def now(monkeypatch):
    time = [START]
    monkeypatch.setattr(clock, "seconds", lambda: time[0])
    return time


@pytest.fixture
def visits(tmp_path, now):
    file = tmp_path / "visits.csv"
    file.write_text(TABLE)
    return file


def test_a_column_says_when_rows_expire(tmp_path, visits, now):
    store = tmp_path / "a.store"
    run("init", store, "--tau", "0.5", "--keep", "400d", "--classes", "ill,healthy", code=0)
    columns = ("--owner", "patient", "--record-id", "visit", "--expires", "delete_on")
    told = run("add", store, visits, *columns, "--json", code=0)
    facts = json.loads(told.stdout)
    assert (facts["added"], facts["expired"], facts["records"]) == (3, 1, 3)
    words = run("status", store, code=0).stdout
    assert "records that expire: about 10 within a day, about 10 within a week, about 10 later" in words
    assert "records take part for 400 days after they came" in words
    assert "unchanged 3" in run("sync", store, visits, *columns, code=0).stdout
    now[0] += 2 * 3600
    with Store(store, read_only=True) as opened:
        assert len(opened.engine.shard) == 3
    assert "erased 0 of 2 records" in run("expire", store, code=0).stdout  # opening it has erased one
    now[0] += 24 * 5 * 3600
    assert json.loads(run("status", store, "--json", code=0).stdout)["records"] == 1


def test_a_schema_names_the_column(tmp_path, visits, now):
    schema, store = tmp_path / "schema.yaml", tmp_path / "a.store"
    roles = ("--label", "y", "--owner", "patient", "--record-id", "visit", "--expires", "delete_on")
    run("schema", "infer", visits, *roles, "-o", schema, code=0)
    assert "expires: delete_on" in schema.read_text()
    run("init", store, "--schema", schema, code=0)
    assert "added 3, expired 1" in run("add", store, visits, code=0).stdout
    run("verify", store, code=0)
    wrong = run("schema", "edit", schema, "--expires", "y", code=2)
    assert "column 'y' must have one meaning" in wrong.stderr


def test_holds_are_begun_listed_and_ended(tmp_path, visits, now):
    store, receipt = tmp_path / "a.store", tmp_path / "receipt.json"
    run("init", store, "--tau", "0.5", "--classes", "ill,healthy", code=0)
    run("add", store, visits, "--owner", "patient", "--record-id", "visit", "--expires", "delete_on", code=0)
    assert "under a hold: 0 people" in run("hold", store, code=0).stdout
    assert "  bob" in run("hold", store, "bob", code=0).stdout
    assert "no record of theirs was ever added" in run("hold", store, "zoe", code=2).stderr
    now[0] += 3 * 3600
    assert "erased 0 of 3" in run("expire", store, code=0).stdout
    assert "under a hold" in run("status", store, code=0).stdout
    words = run("hold", store, "bob", "--release", "--receipt", receipt, code=0).stdout
    assert "erased what was due: 1 record, " in words
    assert json.loads(receipt.read_text())["owners"] == ["bob"]
    run("verify", store, code=0)


def test_a_forget_under_a_hold_says_that_bytes_are_kept(tmp_path, visits, now):
    store = tmp_path / "a.store"
    run("init", store, "--tau", "0.5", "--classes", "ill,healthy", code=0)
    run("add", store, visits, "--owner", "patient", "--record-id", "visit", "--expires", "delete_on", code=0)
    run("hold", store, "bob", code=0)
    assert "their bytes are kept until the hold ends" in run("forget", store, "bob", code=0).stdout

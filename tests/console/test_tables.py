"""A store with a schema: the form has its columns, and the files of the command line are taken."""

import csv
import re

import pytest
from playwright.sync_api import expect

from console.serving import House
from helpers.commands import run
from indknn.settings import Settings
from indknn.store import Store
from indknn.tables import Category, Date, Ignored, Number, Schema, YesNo
from indknn.tables.schema import to_plain

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

SCHEMA = Schema(
    {
        "age": Number(bounds=(0, 100)),
        "ward": Category(values=("surgery", "eye, ear"), missing="refuse"),
        "smokes": YesNo(),
        "since": Date(bounds=("2020-01-01", "2026-01-01")),
        "note": Ignored(),
    },
    label="outcome",
    classes=("home", "stays"),
    owner="patient",
    record_id="visit",
)
HEAD = "visit;patient;age;ward;smokes;since;note;outcome"


def line(i, who="p"):
    ward = '"eye, ear"' if i % 2 else "surgery"
    return f"v{who}{i};{who}{i % 40};{20 + i % 60};{ward};{'yes' if i % 3 else ''};2024-05-{1 + i % 28:02};ok;{'home' if i % 2 else 'stays'}"


@pytest.fixture(scope="module")
def ward(tmp_path_factory, browser):
    path = tmp_path_factory.mktemp("ward") / "ward.store"
    settings = Settings.of(SCHEMA.n_features, SCHEMA.classes, tau=0.3, max_queries=2000, schema=to_plain(SCHEMA))
    Store.create(path, settings).close()
    table = path.with_name("visits.csv")
    table.write_text("\n".join([HEAD, *(line(i) for i in range(80))]) + "\n")
    run("add", path, table, code=0)
    served = House(path, roles=["admin", "curator"]).start()
    yield served
    served.stop()


def test_the_form_has_the_columns_of_the_schema(ward, visit):
    page = visit(ward.url).sign_in(ward.keys["admin"], "ask")
    fields = page.locator("#ask .fields label").all_inner_texts()
    assert fields == ["age", "ward", "smokes", "since"]  # none for what is ignored
    age = page.get_by_label("age", exact=True)
    assert [age.get_attribute(name) for name in ("type", "min", "max")] == ["number", "0", "100"]
    since = page.get_by_label("since")
    assert [since.get_attribute(name) for name in ("type", "min", "max")] == ["date", "2020-01-01", "2026-01-01"]
    options = page.get_by_label("ward").locator("option").all_inner_texts()
    assert options == ["choose", "surgery", "eye, ear", "another value"]
    assert page.get_by_label("smokes").locator("option").all_inner_texts() == ["not known", "yes", "no"]

    ask = page.get_by_role("button", name="Ask, and spend")
    age.fill("41")
    ask.click()
    expect(page.locator("#ask-error")).to_have_text("ward must be given.")
    expect(page.get_by_label("ward")).to_be_focused()
    page.get_by_label("ward").select_option("eye, ear")
    page.get_by_label("smokes").select_option("no")
    since.fill("2024-05-05")
    with page.expect_request("**/infer") as sent:
        ask.click()
    assert sent.value.post_data_json["rows"] == [
        {"age": 41, "ward": "eye, ear", "smokes": False, "since": "2024-05-05"}
    ]
    expect(page.locator("#ask .result")).to_have_text(re.compile("^outcome: (home|stays)$"))
    assert sorted(page.locator("#ask .shares li span:first-child").all_inner_texts()) == ["home", "stays"]
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#updated")).to_contain_text("Updated")
    expect(age).to_have_value("41")  # a refresh does not make the form anew


def test_a_number_that_is_none_is_not_a_gap(ward, visit):
    page = visit(ward.url).sign_in(ward.keys["admin"], "ask")
    page.get_by_label("ward").select_option("surgery")
    page.get_by_label("age", exact=True).press_sequentially("4e")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask-error")).to_have_text("age must be a number.")


def test_many_queries_come_back_with_their_ids(ward, visit, tmp_path):
    page = visit(ward.url).sign_in(ward.keys["admin"], "ask")
    queries = tmp_path / "queries.csv"
    rows = [f'q"{i};{i % 90};surgery;no;2024-01-01' for i in range(450)]  # in three requests
    queries.write_text("\n".join(["visit;age;ward;smokes;since", *rows]), encoding="utf-8-sig")
    page.get_by_label("A CSV file with one query per row").set_input_files(queries)
    expect(page.locator("#ask-file-text")).to_have_value(re.compile("^visit;age"))
    page.get_by_role("button", name="Ask all, and spend").click()
    expect(page.locator("#ask-file .result")).to_have_text("450 queries were answered.")
    assert page.locator("#ask-file tbody tr").count() == 20
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the answers").click()
    with download.value.path().open(newline="") as file:
        answers = list(csv.DictReader(file))
    assert [row["visit"] for row in answers] == [f'q"{i}' for i in range(450)]
    assert {row["outcome"] for row in answers} <= {"home", "stays"}
    assert all(abs(float(row["p_home"]) + float(row["p_stays"]) - 1.0) < 1e-9 for row in answers)


def test_a_file_with_a_wrong_column_is_refused_in_a_sentence(ward, visit, tmp_path):
    opened = visit(ward.url)
    opened.statuses = {422}
    page = opened.sign_in(ward.keys["admin"], "ask")
    text, ask = page.locator("#ask-file-text"), page.get_by_role("button", name="Ask all, and spend")
    text.fill("age,ward,smokes\n41,surgery,no")
    ask.click()
    expect(page.locator("#ask-file-error")).to_contain_text("'since' is missing")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("age;ward\n41;Chirurgié".encode("latin-1"))
    page.get_by_label("A CSV file with one query per row").set_input_files(latin)
    expect(page.locator("#ask-file-error")).to_have_text("latin.csv is not text in UTF-8. Save it as CSV UTF-8.")
    expect(text).to_have_value("")  # what the file before it held would be asked, and cost


def test_a_file_that_cannot_be_read_leaves_no_records_of_the_file_before_it(ward, visit, tmp_path):
    page = visit(ward.url).sign_in(ward.keys["curator"], "records")
    choose, add = page.get_by_label("A CSV or JSON file"), page.get_by_role("button", name="Add", exact=True)
    wide = tmp_path / "wide.csv"
    wide.write_text("\n".join([HEAD, line(1, "wide")]), encoding="utf-16")
    choose.set_input_files(wide)
    expect(page.locator("#records-preview")).to_contain_text("Ready: 1 record of 1 owner")
    for name, content, told in [
        ("odd.csv", b"\xe9\xff", "odd.csv is not text in UTF-8. Save it as CSV UTF-8."),
        ("no.csv", b"", "no.csv is empty."),
    ]:
        page.locator("#records-text").fill(f"{HEAD}\n{line(1, 'kept')}")
        expect(add).to_be_enabled()
        (tmp_path / name).write_bytes(content)
        choose.set_input_files(tmp_path / name)
        expect(page.locator("#records-error")).to_have_text(told)
        expect(page.locator("#records-text")).to_have_value("")
        expect(add).to_be_disabled()


def test_the_file_of_indknn_add_is_taken(ward, visit, tmp_path):
    page = visit(ward.url).sign_in(ward.keys["curator"], "records")
    expect(page.locator("#records-hint")).to_contain_text('"outcome" is the label, "patient" the person, "visit"')
    before = ward.ask("v1/status")
    file = tmp_path / "more.csv"
    file.write_text("\n".join([HEAD, *(line(i, "new") for i in range(6))]), encoding="utf-8-sig")
    page.get_by_label("A CSV or JSON file").set_input_files(file)
    expect(page.locator("#records-preview")).to_have_text(
        "Ready: 6 records of 6 owners; 5 columns; labels home, stays."
    )
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#records-result")).to_contain_text("Added 6 records.")
    after = ward.ask("v1/status")
    assert (after["records"], after["owners"]) == (before["records"] + 6, before["owners"] + 6)
    assert ward.ask("v1/owners/new3")["records"] == 1

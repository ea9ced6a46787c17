"""Which columns are the label, the owner and the record id: asked for, named although a sample lacks them, changed."""

import json

import numpy as np
import pandas as pd
import pytest

from helpers.commands import run
from indknn import InvalidInputError
from indknn.store import Store
from indknn.tables import infer, read_schema
from indknn.tables.infer import likely_labels

RNG = np.random.default_rng(5)
N = 120
TABLE = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, N),
        "ward": RNG.choice(["surgery", "medicine"], N),
        "outcome": RNG.choice(["ill", "well"], N),
    }
)
PRIVATE = TABLE.assign(patient=[f"p{i // 2}" for i in range(N)], visit=[f"v{i}" for i in range(N)])
OPTIONS = ("--tau", 0.3, "--max-queries", 300, "--mode", "votes")


@pytest.fixture
def folder(tmp_path):
    TABLE.to_csv(tmp_path / "public.csv", index=False)
    PRIVATE.to_csv(tmp_path / "visits.csv", index=False)
    TABLE.drop(columns="outcome").head(5).to_csv(tmp_path / "queries.csv", index=False)
    return tmp_path


def inferred(folder, *words, **options):
    return run("schema", "infer", folder / "public.csv", "-o", folder / "schema.yaml", *words, **options)


def told(result):
    """The one line of an error."""
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line


def test_the_label_must_be_named(folder, monkeypatch):
    line = told(inferred(folder))
    assert line == (
        "indknn: name the column of the label with --label ('outcome' or 'ward' may be it), or say --no-label"
    )
    assert not (folder / "schema.yaml").exists()
    assert "contradict each other" in told(inferred(folder, "--label", "outcome", "--no-label"))
    monkeypatch.setattr("indknn.cli.schema._on_terminal", lambda: True)
    asked = inferred(folder, "--owner", "patient", given="nothing\n\n", code=0)
    assert "Which column is the label? (age, ward, outcome) [outcome]" in asked.stderr
    schema = read_schema(folder / "schema.yaml")
    assert (schema.label, schema.classes) == ("outcome", ("ill", "well"))


def test_no_label_is_said_in_words(folder):
    inferred(folder, "--no-label", "--owner", "patient", "--record-id", "visit", code=0)
    schema = read_schema(folder / "schema.yaml")
    assert schema.label is None
    assert "outcome" in schema.used


def test_which_columns_look_like_a_label():
    assert likely_labels({"class": list("abab"), "x": [1, 2, 3, 4], "z": list("aabb")}) == ["class", "z"]
    assert likely_labels({"x": [1, 1, 1, 1], "y": ["", "?", "a", "a"], "n": list(range(4))}) == []


def test_a_sample_without_owners_works_from_end_to_end(folder):
    """Either the schema names the owner beforehand, or the command that adds records does."""
    said = inferred(folder, "--label", "outcome", "--owner", "patient", "--record-id", "visit", code=0)
    assert "patient: not in the sample; the tables of records must have it" in said.stdout
    assert run("schema", "check", folder / "schema.yaml", folder / "public.csv").exit_code == 0
    run("schema", "infer", folder / "public.csv", "--label", "outcome", "-o", folder / "open.yaml", code=0)
    both = ("--owner", "patient", "--record-id", "visit")
    for name, words in (("schema", []), ("open", both)):
        store = folder / f"{name}.store"
        public = ("--public", folder / "public.csv")
        run("init", store, "--schema", folder / f"{name}.yaml", *public, *OPTIONS, code=0)
        if name == "open":
            assert "has no owners: an array owners, or a column named by --owner" in told(
                run("add", store, folder / "visits.csv")
            )
        assert "added 120; now" in run("add", store, folder / "visits.csv", *words, code=0).stdout
        assert "unchanged 120" in run("sync", store, folder / "visits.csv", *words, code=0).stdout
        run("predict", store, folder / "queries.csv", "-o", folder / "answers.csv", code=0)
        assert len((folder / "answers.csv").read_text().splitlines()) == 6
    contradicts = told(run("add", folder / "schema.store", folder / "visits.csv", "--owner", "ward"))
    assert "--owner is not for this store: its schema names the columns; it says 'patient'" in contradicts
    feature = told(run("add", folder / "open.store", folder / "visits.csv", "--owner", "ward"))
    assert "--owner ward is not for this store: column 'ward' is a feature there" in feature


def test_a_misspelt_owner_is_not_taken_for_one_that_the_sample_lacks():
    with pytest.raises(InvalidInputError, match="column 'pateint' is missing; did you mean 'patient'"):
        infer(PRIVATE, label="outcome", owner="pateint")


def test_one_column_may_be_owner_and_record_id(folder):
    """A table with one row per person has no other id."""
    TABLE.assign(person=range(N)).to_csv(folder / "people.csv", index=False)
    inferred(folder, "--label", "outcome", "--owner", "person", "--record-id", "person", code=0)
    run("init", folder / "s.store", "--schema", folder / "schema.yaml", *OPTIONS, code=0)
    assert "added 120" in run("sync", folder / "s.store", folder / "people.csv", code=0).stdout
    assert "unchanged 120" in run("sync", folder / "s.store", folder / "people.csv", code=0).stdout
    with pytest.raises(InvalidInputError, match="'outcome' must have one meaning"):
        infer(TABLE, label="outcome", owner="outcome")


# Changing a schema


def test_a_schema_in_a_file_is_changed(folder):
    inferred(folder, "--label", "outcome", code=0)
    before = (folder / "schema.yaml").read_text()
    assert before.startswith("# outcome: the classes")
    edited = ("--owner", "patient", "--record-id", "visit", "--ignore", "ward", "--ignore", "note")
    run("schema", "edit", folder / "schema.yaml", *edited, code=0)
    assert (folder / "schema.yaml").read_text().startswith(before.splitlines()[0])
    schema = read_schema(folder / "schema.yaml")
    assert (schema.owner, schema.record_id, list(schema.used)) == ("patient", "visit", ["age"])
    assert "note" in schema.columns
    for words, complaint in (
        ([], "say what to change: --owner, --record-id, --expires, --owner-epsilon or --ignore"),
        (["--ignore", "patient"], "column 'patient' must have one meaning"),
        (["--owner", "outcome"], "column 'outcome' must have one meaning"),
        (["--ignore", "age"], "at least one column that is not ignored"),
    ):
        text = (folder / "schema.yaml").read_text()
        assert complaint in told(run("schema", "edit", folder / "schema.yaml", *words))
        assert (folder / "schema.yaml").read_text() == text
    (folder / "template.yaml").write_text(run("schema", "template").stdout)
    assert "seems to have comments" in told(run("schema", "edit", folder / "template.yaml", "--owner", "person"))


def test_a_store_takes_changes_of_its_schema_until_it_has_records(folder):
    inferred(folder, "--label", "outcome", code=0)
    store = folder / "s.store"
    run("init", store, "--schema", folder / "schema.yaml", *OPTIONS, code=0)
    edited = ("--owner", "patient", "--record-id", "visit", "--ignore", "ward")
    facts = json.loads(run("schema", "edit", store, *edited, "--json", code=0).stdout)
    with Store(store) as opened:
        assert (opened.schema.owner, list(opened.schema.used)) == ("patient", ["age"])
        assert opened.settings.n_features == opened.schema.n_features == facts["features"]
    assert "added 120" in run("add", store, folder / "visits.csv", code=0).stdout
    late = "a schema can be changed only before the first records and answers of its store"
    assert late in told(run("schema", "edit", store, "--record-id", "id"))
    run("forget", store, *(f"p{i}" for i in range(N // 2)), code=0)
    assert late in told(run("schema", "edit", store, "--owner", "person"))  # it had records
    assert "all is well" in run("verify", store, code=0).output


def test_a_schema_that_was_used_is_not_changed(folder):
    inferred(folder, "--label", "outcome", "--owner", "patient", code=0)
    words = ("--schema", folder / "schema.yaml", *OPTIONS)
    run("init", folder / "asked.store", *words, code=0)
    run("predict", folder / "asked.store", folder / "queries.csv", "-o", folder / "a.csv", code=0)
    assert "before the first records and answers" in told(run("schema", "edit", folder / "asked.store", "--owner", "x"))
    run("init", folder / "public.store", *words, "--public", folder / "public.csv", code=0)
    refused = told(run("schema", "edit", folder / "public.store", "--ignore", "ward"))
    assert "public rows, which were encoded with all columns" in refused
    run("schema", "edit", folder / "public.store", "--record-id", "visit", code=0)
    with Store(folder / "public.store") as opened:
        assert opened.engine.predictor.public is not None
    run("init", folder / "plain.store", code=0)
    assert "has no schema" in told(run("schema", "edit", folder / "plain.store", "--owner", "x"))


def test_a_schema_that_people_paid_for_can_still_be_changed(folder):
    """Counts are a release, but they came before the schema."""
    store, out = folder / "s.store", folder / "paid.yaml"
    run("init", store, "--epsilon", 8, code=0)
    words = ("--paid", store, "--yes", "--owner", "patient", "-o", out)
    assert "the table has age, ward, outcome, patient, visit" in told(
        run("schema", "infer", folder / "visits.csv", *words)
    )  # nothing is told about private values
    labels = ("--label", "outcome", "--classes", "ill,well")
    missing = told(run("schema", "infer", folder / "visits.csv", *words, *labels, "--record-id", "id"))
    assert "column 'id' is missing" in missing
    run("schema", "infer", folder / "visits.csv", *words, *labels, code=0)
    run("schema", "adopt", store, out, code=0)
    run("schema", "edit", store, "--record-id", "visit", code=0)
    assert "added 120" in run("sync", store, folder / "visits.csv", code=0).stdout

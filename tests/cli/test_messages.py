"""What people are told when something is misspelt, odd or probably a mistake. Each row was seen by somebody who tried."""

import gzip
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from conftest import blobs
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.errors import InvalidInputError, PrivacyWarning, meant
from indknn.settings import Settings
from indknn.store import Store
from indknn.tables import Category, Number, Schema
from indknn.tables.schema import from_plain, to_plain
from indknn.types import Given
from server.serving import INFER, application, make_store

X, Y = blobs(90, 2, 4)
PEOPLE = [f"p{i}" for i in range(90)]
SCHEMA = Schema(
    {"age": Number(bounds=(0, 100)), "job": Category(values=("cook", "baker"))},
    label="ill",
    classes=("no", "yes"),
    owner="who",
)


def table(**changes):
    rows = {"age": [20, 30, 40, 50], "job": ["cook", "baker"] * 2, "ill": ["no", "yes"] * 2, "who": list("abcd")}
    return pd.DataFrame({**rows, **changes})


def csv(path, separator=";", encoding="utf-8"):
    lines = [["height", "weight", "diagnosis", "patient"]]
    lines += [[f"{a:.3f}", f"{b:.3f}", str(y), f"p{i}"] for i, ((a, b, *_), y) in enumerate(zip(X, Y, strict=True))]
    path.write_text("\n".join(separator.join(line) for line in lines) + "\n", encoding=encoding)
    return path


@pytest.fixture
def store(tmp_path):
    run("init", tmp_path / "a.store", "--classes", "0,1", code=0)
    return tmp_path / "a.store"


def refused(*words):
    return run(*words, code=2).stderr


class TestDidYouMean:
    @pytest.mark.parametrize(
        ("word", "known", "hint"),
        [
            ("alcie", ["bob", "alice"], "; did you mean 'alice'?"),
            ("Alice", ["alice"], "; did you mean 'alice'?"),
            ("3", [1, 2], ""),
            ("x", [], ""),
        ],
    )
    def test_the_nearest_word_is_named_if_there_is_one(self, word, known, hint):
        assert meant(word, known) == hint

    def test_for_columns_of_a_schema(self):
        with pytest.raises(InvalidInputError, match=r"column 'aeg' is not in the schema; did you mean 'age'\?"):
            SCHEMA.encode(table().rename(columns={"age": "aeg"})[["aeg", "job"]])
        with pytest.raises(InvalidInputError, match=r"column 'job' is missing: .* only age$"):
            SCHEMA.encode(table()[["age"]])

    def test_for_columns_that_options_name(self, store, tmp_path):
        file = csv(tmp_path / "r.csv")
        told = refused("add", store, file, "--label", "diagnoses", "--owner", "patient", "--features", "height,wieght")
        assert "no column 'wieght', only height, weight, diagnosis, patient; did you mean 'weight'?" in told
        told = refused("add", store, file, "--label", "diagnosis", "--owner", "pateint")
        assert "there is no column 'pateint' for --owner; did you mean 'patient'?" in told
        told = refused("add", store, file, "--label", "diagnoses", "--owner", "patient")
        assert "has no labels" in told
        assert "did you mean 'diagnosis'?" in told

    def test_for_classes(self):
        with pytest.raises(
            InvalidInputError, match=r"row 2: unknown label 'yse': .*\['no', 'yes'\]; did you mean 'yes'\?"
        ):
            IndKNNClassifier(schema=SCHEMA).fit(table(ill=["no", "yes", "yse", "no"]))

    def test_for_parameters_and_kinds(self):
        with pytest.raises(InvalidInputError, match=r"mode must be .* got 'vote'; did you mean 'votes'\?"):
            Settings(2, (0, 1), mode="vote")
        with pytest.raises(InvalidInputError, match=r"got 'categroy'; did you mean 'category'\?"):
            from_plain({"columns": {"job": {"kind": "categroy"}}})

    def test_for_commands_and_options(self):
        assert "No such command 'pedict'; did you mean 'predict'?" in refused("pedict", "x")
        assert "--analyst" in refused("predict", "a", "b", "--analist", "c")

    def test_for_files_and_stores(self, store, tmp_path):
        csv(tmp_path / "queries.csv")
        for words, code, name in (
            (["status", tmp_path / "b.store"], 3, "a.store"),
            (["keys", "list", tmp_path / "b.store"], 2, "a.store"),
            (["add", store, tmp_path / "querie.csv"], 2, "queries.csv"),
            (["predict", store, tmp_path / "querie.csv", "-o", tmp_path / "o.csv"], 3, "queries.csv"),
        ):
            assert f" does not exist; did you mean '{name}'?" in run(*words, code=code).stderr
        told = run("predict", tmp_path / "other", tmp_path / "queries.csv", "-o", tmp_path / "o.csv", code=3).stderr
        assert "other does not exist; make a store with: indknn init" in told

    def test_a_file_that_cannot_be_written_is_named_without_a_number(self, store, tmp_path):
        csv(tmp_path / "q.csv", ",")
        told = run("export", "audit", store, "-o", tmp_path / "no" / "a.jsonl", code=3).stderr
        assert "does not exist" in told
        assert "Errno" not in told


class TestPlaces:
    def test_a_folder_that_is_not_there_is_named(self, store, tmp_path):
        gone = tmp_path / "gone"
        assert f"there is no folder {gone}\n" in run("init", gone / "a.store", code=3).stderr
        told = run("verify", store, "--witness", gone / "w", code=3).stderr
        assert f"its witness {gone / 'w'} was not: No such file or directory\n" in told

    def test_a_wrong_epsilon_is_said_before_any_table_and_names_the_person(self, store, tmp_path):
        assert run("budget", "--epsilon", "0", code=2).stdout == ""
        (tmp_path / "r.csv").write_text("a,b,y,owner\n1,2,0,ann\n1,3,1,bob\n")
        run("add", store, tmp_path / "r.csv", code=0)
        told = refused("owner", store, "ann", "--lower", "3")
        assert "epsilon of 'ann' must be at least 0.0001 and at most the store's, 1: it may only be lower" in told

    def test_an_unknown_analyst_gets_no_explanation_either(self, store, tmp_path):
        """Some analysts must not see the shared model. A misspelt name must not show it to them."""
        (tmp_path / "q.csv").write_text("a,b\n1,2\n")
        run("analysts", "add", store, "alice", code=0)
        assert "there is no analyst 'alcie'; did you mean 'alice'?" in refused(
            "explain", store, tmp_path / "q.csv", "--analyst", "alcie"
        )


class TestFiles:
    @pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_separators_and_encodings_are_understood(self, store, tmp_path, separator, encoding):
        file = csv(tmp_path / "r.csv", separator, encoding)
        told = run("add", store, file, "--label", "diagnosis", "--owner", "patient", code=0).output
        assert "90 records of 90 people" in told

    def test_a_gzipped_one_too(self, store, tmp_path):
        file = csv(tmp_path / "r.csv", encoding="utf-16")
        (tmp_path / "r.csv.gz").write_bytes(gzip.compress(file.read_bytes()))
        run("add", store, tmp_path / "r.csv.gz", "--label", "diagnosis", "--owner", "patient", code=0)

    def test_another_encoding_is_named(self, store, tmp_path):
        file = csv(tmp_path / "r.csv")
        file.write_bytes(file.read_text().replace("p7", "Zoë").encode("latin-1"))
        assert "not a readable csv file (not utf-8; save it as UTF-8)" in refused(
            "add", store, file, "--label", "diagnosis"
        )

    def test_a_frame_that_was_read_with_the_wrong_separator_is_recognised(self, tmp_path):
        frame = pd.DataFrame({"age;job;ill;who": ["20;cook;no;a"]})
        with pytest.raises(InvalidInputError, match="read as one column: say that ';' is between its columns"):
            IndKNNClassifier(schema=SCHEMA).fit(frame)


def test_values_are_shown_as_their_owner_wrote_them():
    with pytest.raises(InvalidInputError, match="unknown label 'c': the classes are"):
        IndKNNClassifier(classes=["a", "b"]).fit(X[:3], np.array(["a", "b", "c"]))


@pytest.mark.parametrize(
    "owners", [[1.0, np.nan, 3.0], pd.Series([1, None, 3]), ["a", None, "c"], pd.array([1, pd.NA, 3], dtype="Int64")]
)
def test_the_row_of_a_missing_owner_is_named(owners):
    with pytest.raises(
        InvalidInputError, match=r"row 1: the owner must be text or a whole number, got (nan|None|<NA>)"
    ):
        IndKNNClassifier(classes=[0, 1]).fit(X[:3], [0, 1, 0], owners=owners)


def test_the_row_is_counted_from_the_beginning_of_the_file(store, tmp_path):
    """A file is read in pieces. A row was named by its place in the piece, and an owner by a number without a word."""
    lines = ["a,b,y,owner", *(f"1,2,0,p{i}" for i in range(5000)), "1,2,0,", "1,2,0,p1"]
    (tmp_path / "r.csv").write_text("\n".join(lines))
    assert "r.csv: row 5000: the owner must not be empty" in refused("add", store, tmp_path / "r.csv")


def test_a_store_that_is_served_says_how_to_ask_its_server(store):
    with Store(store):
        told = run("status", store, code=3).stderr
    assert "is in use by " in told
    assert "If that is a server, ask it: indknn status --url" in told


def test_a_service_speaks_plainly(tmp_path):
    with make_store(tmp_path / "s.store") as made, application(made, roles=["analyst"]) as client:
        key = client.keys["analyst"]
        told = client("GET", "/v1/status", key).json()["error"]
        assert (
            told == "a key of role analyst may not see what people have spent; roles that may: admin, auditor, curator"
        )
        form = {"content-type": "application/x-www-form-urlencoded"}
        told = client("POST", INFER, key, content=b"a=1", headers=form).json()["error"]
        assert "'application/x-www-form-urlencoded'" in told
        assert "b'" not in told


def test_a_reader_who_has_seen_enough_is_no_error(store, tmp_path):
    """As `indknn export ... | head`: the pipe is closed before the first line."""
    command = [sys.executable, "-m", "indknn", "analysts", "list", str(store), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, b"")


class TestNotes:
    def test_a_large_delta_and_a_single_class(self, tmp_path):
        with pytest.warns(PrivacyWarning, match=r"delta = 0.5 is a probability with which the guarantee may fail"):
            Store.create(tmp_path / "a", Settings(2, (0, 1), delta=0.5)).close()
        with pytest.warns(UserWarning, match="there is one class, 'ill', so every answer is the same"):
            IndKNNClassifier(classes=["ill"], tau=0.5).fit(X[:4], ["ill"] * 4)
        told = run("init", tmp_path / "b", "--delta", "0.02", "--classes", "ill", code=0).stderr
        assert "delta = 0.02 is a probability" in told
        assert "one class, 'ill'" in told

    def test_one_class_that_was_taken_from_the_first_records(self, tmp_path):
        with (
            Store.create(tmp_path / "a", Settings(1, ()), draft=True) as made,
            pytest.warns(UserWarning, match="there is one class, '1'"),
        ):
            made.add(X[:4], [1] * 4, list("abcd"))

    def test_how_many_people_delta_is_for_is_said_before_they_come(self, tmp_path):
        told = run("init", tmp_path / "a.store", code=0)
        assert (
            "delta = 1e-05 is for fewer than 100,000 people; for more, make a store with a smaller one" in told.stdout
        )
        assert not told.stderr
        told = run("init", tmp_path / "b.store", "--expected-records", "200000", code=0)
        assert "delta = 1e-05 is at least 1/n for n = 200,000 people: make it much smaller than 5e-06" in told.stderr

    def test_values_that_are_cut_or_not_listed_are_counted_for_whoever_adds_them(self, tmp_path):
        odd = table(age=[20, 1e23, -5, 50], job=["cook", "pilot", "cook", "baker"])
        cut = "values beyond the public bounds count as the nearest bound: 1 in 'age'"
        other = "values that the schema does not list count as one other value: 1 in 'job'"
        with pytest.warns(UserWarning, match=cut), pytest.warns(UserWarning, match=other):
            IndKNNClassifier(schema=SCHEMA).fit(odd)
        settings = Settings(SCHEMA.n_features, SCHEMA.classes, schema=to_plain(SCHEMA))
        with Store.create(tmp_path / "a", settings) as made:
            with pytest.warns(UserWarning, match=cut), pytest.warns(UserWarning, match=other):
                made.add(odd)
            rows = odd[["age", "job"]].to_dict("records")
            added = made.upsert(Given(rows, ["no"] * 4, [f"q{i}" for i in range(4)]), [None] * 4)
            assert {str(one) for one in added.advice} >= {cut, other}
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                made.add(table(who=list("efgh")))

    def test_odd_values_of_single_queries_are_counted_too(self, tmp_path):
        model = IndKNNClassifier(schema=SCHEMA, random_state=0).fit(table(who=list("abcd")))
        odd = table(age=[20, 1e23, 30, 50], job=["cook", "pilot", "cook", "cook"])[["age", "job"]]
        cut = "values beyond the public bounds count as the nearest bound: 1 in 'age'"
        other = "values that the schema does not list count as one other value: 1 in 'job'"
        with pytest.warns(UserWarning, match=cut), pytest.warns(UserWarning, match=other):
            model.predict(odd)
        path, settings = tmp_path / "a", Settings(SCHEMA.n_features, SCHEMA.classes, schema=to_plain(SCHEMA))
        with Store.create(path, settings) as made:
            made.add(table(who=list("abcd")))
        odd.to_csv(tmp_path / "q.csv", index=False)
        told = run("predict", path, tmp_path / "q.csv", "-o", tmp_path / "o.csv", code=0).stderr
        assert cut in told
        assert other in told


class TestTablesThatAreNotPlainNumbers:
    @pytest.mark.parametrize(
        ("value", "told"),
        [
            ('"1000,5"', "got '1000,5'; write 1000.5"),
            ("", "got ''; texts, dates and gaps need a schema: indknn schema infer"),
            ("2001-02-03", "got '2001-02-03'; texts, dates and gaps need a schema: indknn schema infer"),
        ],
    )
    def test_a_value_that_is_no_number_says_what_to_do(self, store, tmp_path, value, told):
        (tmp_path / "a.csv").write_text(f"age,income,y,owner\n31,{value},0,ann\n")
        assert f"column 'income' must be a number, {told}" in refused("add", store, tmp_path / "a.csv")

    def test_a_file_that_is_no_npz_gives_no_advice_about_pickles(self, store, tmp_path):
        (tmp_path / "a.npz").write_text("hello")
        assert refused("add", store, tmp_path / "a.npz").endswith(
            "not a readable npz file (it holds no plain arrays)\n"
        )

    def test_an_array_of_one_dimension_is_named_by_its_shape(self, store, tmp_path):
        np.savez(tmp_path / "a.npz", X=np.ones(8))
        assert "X must have one row of features per record, got shape (8,)" in refused("add", store, tmp_path / "a.npz")


class TestSchemaInfer:
    @pytest.fixture
    def sample(self, tmp_path):
        rows = {"age": range(20, 80), "days": np.arange(60) % 9, "job": ["cook", "baker"] * 30}
        pd.DataFrame(rows).to_csv(tmp_path / "public.csv", index=False)
        return tmp_path / "public.csv"

    @pytest.mark.parametrize(
        ("label", "given", "said"),
        [
            ("days", ("--target", "number"), "the bounds are those of the sample"),
            ("job", (), "the classes are those of the sample"),
        ],
    )
    def test_what_was_given_is_not_said_to_be_of_the_sample(self, sample, label, given, said):
        more = ("--bounds", 0, 60) if given else ("--classes", "cook,baker,smith")
        assert said in run("schema", "infer", sample, "--label", label, *given, code=0).stdout
        assert said not in (found := run("schema", "infer", sample, "--label", label, *given, *more, code=0).stdout)
        assert ("[0.0, 60.0]" if given else "[cook, baker, smith]") in found

    def test_a_sample_of_one_row_says_why_no_column_is_left(self, tmp_path):
        (tmp_path / "one.csv").write_text("age,job,ill\n31,cook,no\n")
        told = refused("schema", "infer", tmp_path / "one.csv", "--label", "ill")
        assert "no column of the sample can be a feature: age: ignored, because it is constant in the sample" in told

    def test_a_label_that_is_not_there_and_bounds_of_classes(self, sample):
        assert "did you mean 'days'?" in refused("schema", "infer", sample, "--label", "day")
        assert "--bounds are for --target number" in refused(
            "schema", "infer", sample, "--label", "job", "--bounds", 0, 9
        )


def test_one_is_one_record_of_one_person_and_lines_end_as_elsewhere(tmp_path):
    store, file, answers = tmp_path / "a.store", tmp_path / "one.csv", tmp_path / "answers.csv"
    file.write_text("a,b,y,owner\n1,2,no,ann\n")
    run("init", store, "--classes", "no,yes", "--tau", "0.3", code=0)
    assert "now 1 record of 1 person" in run("add", store, file, code=0).output
    assert "1 record of 1 person, 0 forgotten" in run("status", store, code=0).output
    assert "owner ann: 1 record\n" in run("owner", store, "ann", code=0).output
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    assert "1 answer in " in run("predict", store, tmp_path / "new.csv", "-o", answers, code=0).output
    assert b"\r" not in answers.read_bytes()

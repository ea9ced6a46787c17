"""One schema: the same parameters, defaults, limits and messages for the estimator, the command line and stores.

`python -m test_settings` (with `tests` on the path) writes the table of parameters into docs/cli.md.
"""

import inspect
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from indknn import IndKNNClassifier, IndKNNRegressor
from indknn.cli import stores
from indknn.core.calibrate import MANY_CLASSES
from indknn.errors import InvalidInputError
from indknn.ledger.figures import guarantee
from indknn.records.indexes import INDEXES, hashed
from indknn.settings import MAX_CLASSES, MODEL_SHARE, PARAMETERS, SHARE_OF_MANY, Settings
from indknn_lab.tuning import Target

DOCS = Path(__file__).parents[1] / "docs" / "cli.md"
X, Y = np.eye(3), [0, 1, 0]
OPTIONS = {option.name: option for option in stores.init.params}

BAD = [
    ("epsilon", 0, "at least 0.0001 and below 1000"),
    ("epsilon", 1000.0, "at least 0.0001 and below 1000"),
    ("delta", 1.0, "at least 1e-15 and below 1"),
    ("max_queries", 0, "a whole number, at least 1"),
    ("kernel", "linear", "one of 'cosine', 'rbf'"),
    ("tau", 7, "above 0 and at most 1"),
    ("tau", 0.0, "above 0 and at most 1"),
    ("sigma2", 2e6, "above 0 and at most 1048576"),
    ("bandwidth", 1e7, "at least 1e-06 and at most 1000000"),
    ("accountant", "zcdp", "one of 'gdp', 'rdp'"),
    ("index", "hnsw", "one of 'exact', 'lsh', 'sketch'"),
    ("reuse", "votes", "one of 'labels', 'none'"),
    ("max_records_per_query", -1, "a whole number, at least 1"),
    ("global_epsilon", float("nan"), "at least 0.0001 and below 1000"),
    ("mode", "oracle", "one of 'model', 'votes'"),
    ("model_share", 1.0, "above 0 and below 1"),
    ("n_tables", 1025, "a whole number, at least 1 and at most 1024"),
    ("n_bits", 0, "a whole number, at least 1 and at most 16384"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_a_bad_value_gets_the_same_words_everywhere(name, value, allowed, tmp_path):
    words = f"{name} must be {allowed}, got "
    with pytest.raises(InvalidInputError, match=re.escape(f"{words}{value!r}")):
        Settings.of(3, (0, 1), **{name: value})
    with pytest.raises(InvalidInputError, match=re.escape(f"{words}{value!r}")):
        IndKNNClassifier(**{name: value}).fit(X, Y)
    if not isinstance(value, str):  # a choice is refused by click, which names the choices as well
        path = tmp_path / "a.store"
        run = CliRunner().invoke(stores.init, [str(path), f"--{name.replace('_', '-')}={value}"])
        assert isinstance(run.exception, InvalidInputError)
        assert str(run.exception).startswith(words)
        assert not path.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", "1"),
        ("epsilon", True),
        ("epsilon", None),
        ("tau", 10**400),
        ("tau", np.longdouble("1e-4000")),
        ("max_queries", 1.5),
        ("max_queries", True),
        ("normalize", 1),
        ("reuse", True),
        ("kernel", None),
        ("index", ["exact"]),
        ("index_seed", 0.5),
        ("center", "left"),
        ("classes", "ab"),
        ("classes", 7),
        ("classes", (0, None)),
        ("classes", tuple(range(MAX_CLASSES + 1))),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name} must be "):
        Settings.of(**{"n_features": 3, "classes": (0, 1), name: value})


def test_every_value_is_kept_in_its_own_plain_type():
    made = Settings.of(np.int64(3), np.array([0, 1]), epsilon=1, max_queries=np.int32(7), tau=np.float32(0.5))
    more = replace(made, center=np.zeros(3), kernel=np.str_("rbf"), normalize=np.bool_(False))
    assert json.loads(json.dumps(more.stored()))["center"] == [0.0, 0.0, 0.0]
    kinds = {name: type(getattr(more, name)) for name in ("epsilon", "max_queries", "tau", "kernel", "normalize")}
    assert kinds == {"epsilon": float, "max_queries": int, "tau": float, "kernel": str, "normalize": bool}
    assert (type(more.n_features), type(more.classes), type(more.center)) == (int, tuple, tuple)


# Defaults


def test_the_estimator_and_the_command_line_have_the_defaults_of_the_schema():
    others = {"random_state", "store", "public", "schema", "shards", "analysts", "verbose"}
    after = {"class_weight", "min_confidence"}  # what is done with answers is no parameter of a store
    for estimator, lacks, more in ((IndKNNClassifier, {"bounds"}, after), (IndKNNRegressor, {"classes"}, set())):
        given, own = inspect.signature(estimator).parameters, PARAMETERS.keys() - {"target"} - lacks
        assert {name: given[name].default for name in own} == {name: PARAMETERS[name].default for name in own}
        assert set(given) - own == others | more
    assert set(PARAMETERS) - set(OPTIONS) == {"center"}  # a vector, which nobody types
    typed = stores.init.make_context("init", ["a.store"]).params
    assert {name: typed[name] for name in PARAMETERS if name in typed} == {
        name: p.default for name, p in PARAMETERS.items() if name in typed
    }
    target = {f.name: f.default for f in fields(Target) if f.name in PARAMETERS}
    assert len(target) > 5
    assert target == {name: PARAMETERS[name].default for name in target}


def test_settings_without_further_words_are_those_of_the_estimator(tmp_path):
    plain = Settings(n_features=3, classes=(0, 1))
    assert IndKNNClassifier().fit(X, Y)._engine.settings == plain
    run = CliRunner().invoke(stores.init, [str(tmp_path / "a"), "--json", "--classes", "0,1"])
    facts = json.loads(run.output)
    assert facts == {
        "store": str(tmp_path / "a"),
        "budget": plain.budget,
        "guarantee": guarantee(plain),
        **json.loads(json.dumps(plain.stored(draft=True))),
    }


def test_the_mode_follows_reuse():
    for reuse, mode in ((None, "model"), ("labels", "votes"), ("none", "votes")):
        assert Settings(3, (0, 1), reuse=reuse).mode == mode
        assert Settings(3, (0, 1), reuse=reuse, mode="votes").mode == "votes"
    both = Settings(3, (0, 1), reuse="none", mode="model")
    assert both == Settings(3, (0, 1)) == Settings(3, (0, 1), mode="model")
    assert both.shared_budget == 0.9 * both.budget
    assert Settings(3, (0, 1), mode="votes").shared_budget == 0.0


def test_the_indexes_are_those_that_exist_with_their_defaults():
    assert PARAMETERS["index"].choices == tuple(INDEXES)
    made = {index: Settings.of(3, (0, 1), index=index).index_options for index in INDEXES}
    assert made == {
        "exact": {},
        "lsh": {"seed": 0, "n_tables": hashed.LSH_TABLES, "n_bits": hashed.LSH_BITS},
        "sketch": {"seed": 0, "n_bits": hashed.SKETCH_BITS},
    }
    assert PARAMETERS["n_tables"].limits["at_most"] == hashed.MAX_LSH_TABLES
    assert PARAMETERS["n_bits"].limits["at_most"] == max(hashed.MAX_LSH_BITS, hashed.MAX_SKETCH_BITS)


# Store files


def test_settings_survive_being_written():
    settings = Settings.of(8, ("a", "b"), center=range(8), index="sketch", tau=0.5)
    again = Settings.from_stored(json.loads(json.dumps(settings.stored())))
    assert again == settings
    assert settings.stored(draft=True)["n_features"] is None
    assert Settings.from_stored(settings.stored(draft=True)).n_features == 1


def test_files_that_cannot_be_trusted_are_refused():
    stored = Settings.of(8, ("a", "b"), tau=0.5).stored()
    with pytest.raises(InvalidInputError, match="settings colour, shape are unknown or missing"):
        Settings.from_stored({**stored, "shape": 1, "colour": 2})
    with pytest.raises(InvalidInputError, match="settings reuse are unknown or missing"):
        Settings.from_stored({name: value for name, value in stored.items() if name != "reuse"})
    with pytest.raises(InvalidInputError, match="tau must be above 0 and at most 1, got 2.0"):
        Settings.from_stored({**stored, "tau": 2.0})


# Words


def test_every_help_text_is_in_the_estimators_docstring_and_in_the_commands_help():
    doc = " ".join((inspect.getdoc(IndKNNClassifier) + inspect.getdoc(IndKNNRegressor)).split())
    typed = " ".join(str(option.help) for option in stores.init.params if hasattr(option, "help"))
    for name, described in PARAMETERS.items():
        assert name == "target" or (described.help in doc and described.none in doc)
        assert name == "center" or (described.help in typed and described.none in typed)


def table():
    """The parameters of a store, as docs/cli.md has them."""
    yield "| option | allowed (default) | what it is | fixed |"
    yield "|---|---|---|---|"
    for name, p in PARAMETERS.items():
        if name in OPTIONS:
            default = "" if p.default is None else f" ({p.default})"
            allowed = "labels, as a,b,c" if name == "classes" else p.allowed.replace("'", "`")
            about = f"{p.help} Without it: {p.none}." if p.none else p.help
            words = "`, `".join([*OPTIONS[name].opts, *OPTIONS[name].secondary_opts])
            cells = f"`{words}` | {allowed}{default} | {about} | {p.fixed}"
            yield f"| {cells.replace('|x - q|', '‖x - q‖')} |"


def test_the_table_in_the_documents_is_the_schema():
    assert DOCS.read_text().endswith("\n\n" + "\n".join(table()) + "\n")


def test_with_many_classes_more_of_the_budget_is_for_the_shared_model():
    few, many = (Settings(2, tuple(range(n))) for n in (MANY_CLASSES - 1, MANY_CLASSES))
    assert (few.model_share, many.model_share) == (MODEL_SHARE, SHARE_OF_MANY)
    assert many.shared_budget / many.budget == pytest.approx(SHARE_OF_MANY)
    assert Settings(2, many.classes, model_share=0.5).model_share == 0.5
    assert Settings.from_stored(many.stored()) == many


if __name__ == "__main__":
    before, _ = DOCS.read_text().split("| option |")
    DOCS.write_text(before + "\n".join(table()) + "\n")

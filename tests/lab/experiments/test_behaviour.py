"""Results are kept under a digest of how the product behaves: code that only moves keeps them, other answers do not."""

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import indknn
from indknn.core import mechanism
from indknn.models import shared_model
from indknn_lab.experiments.items.endless import EndlessFigures
from indknn_lab.experiments.methods import endless
from indknn_lab.experiments.methods.endless import behaviour
from indknn_lab.experiments.setting import find

SOURCE = Path(indknn.__file__).parents[1]


@pytest.fixture
def digest():
    """The digest, computed anew."""
    return lambda models: behaviour.__wrapped__(models=models)


class OtherWords(ast.NodeTransformer):
    """Writes another docstring wherever there is one."""

    def visit(self, node):
        self.generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node, clean=False):
            node.body[0] = ast.Expr(ast.Constant("Another docstring."))
        return node


def test_other_docstrings_other_layout_and_moved_files_make_the_same_units(tmp_path, digest):
    """A copy of the product with other docstrings, without comments and with a file moved behaves the same."""
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "console"))
    changed = 0
    for path in (tmp_path / "src" / "indknn").rglob("*.py"):
        tree = OtherWords().visit(ast.parse(path.read_text(encoding="utf-8")))
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
        changed += 1
    assert changed > 50
    core = tmp_path / "src" / "indknn" / "core"
    (core / "mechanism.py").rename(core / "moved.py")
    (core / "mechanism.py").write_text("import sys\nfrom indknn.core import moved\nsys.modules[__name__] = moved\n")
    script = "import indknn; from indknn_lab.experiments.methods.endless import behaviour as b; "
    script += "print(indknn.__file__, b(models=True), b(models=False))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    where, *told = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert told == [digest(True), digest(False)]


def test_another_charge_makes_other_units(digest, monkeypatch):
    before = digest(True), digest(False)
    real = mechanism.settle

    def dearer(*words):
        settled = real(*words)
        return replace(settled, charges=settled.charges + 1)

    monkeypatch.setattr(mechanism, "_votes", None)
    monkeypatch.setattr(mechanism, "settle", dearer)
    assert digest(False) != before[1]
    assert digest(True) != before[0]


def test_another_answer_makes_other_units(digest, monkeypatch):
    before = digest(False)
    real = mechanism.noisy_answer
    monkeypatch.setattr(mechanism, "noisy_answer", lambda votes, *a: real(votes // 2, *a))
    assert digest(False) != before


def test_other_models_make_other_units_of_what_uses_models_alone(digest, monkeypatch):
    before = digest(True), digest(False)
    monkeypatch.setattr(shared_model, "MOMENTUM", 0.0)
    assert digest(True) != before[0]
    assert digest(False) == before[1]


def test_units_of_other_methods_do_not_depend_on_the_product(tmp_path, make_features, monkeypatch):
    make_features(tmp_path, "agnews-toy")
    item = EndlessFigures(find(tmp_path, quick=True), None)
    methods = ("open", "votes", "noisy_sgd")
    before = [item.trial("figures", "agnews", m, 1.0).name for m in methods]
    real = endless.behaviour
    monkeypatch.setattr(endless, "behaviour", lambda *, models: "changed" if models else real(models=models))
    after = [item.trial("figures", "agnews", m, 1.0).name for m in methods]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True]
    assert real(models=True) != real(models=False)

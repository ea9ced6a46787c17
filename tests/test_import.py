"""The core imports NumPy, and the rest only where it is used."""

import subprocess
import sys


def modules_after(statement):
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_the_core_does_not_load_the_heavy_ones():
    loaded = modules_after("import indknn, indknn.answering.predictor, indknn.records.shard, indknn.core.calibrate")
    assert not {"sklearn", "click", "rich", "matplotlib", "pandas", "torch"} & loaded
    assert "sklearn" in modules_after("from indknn import IndKNNClassifier")


def test_scipy_is_loaded_with_the_first_budget():
    """It would be half of the start of every command and of every process of a cluster."""
    entered = "import indknn.cli.app, indknn.store, indknn.cluster.host, indknn.client"
    assert "scipy" not in modules_after(entered)
    assert "scipy" in modules_after(f"{entered}; indknn.settings.Settings(2, (0, 1)).budget")


def test_the_client_needs_little_and_reads_frames_without_their_libraries():
    heavy = {"sklearn", "pandas", "polars", "pyarrow", "apsw", "fastapi", "pydantic", "cryptography"}
    assert not heavy & modules_after("import indknn.client")
    asked = "from indknn.client.exchange import *; queries_of([{'a': 1}], Model('m', None, False, 1, [], 9, 9, 9999))"
    assert not heavy & modules_after(asked)


def test_windows_is_told_that_it_has_no_stores():
    code = """
import sys
import indknn
from indknn import IndKNNClassifier
sys.platform = "win32"
try:
    indknn.open("people.store")
except indknn.IndKNNError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("a durable store needs Linux, macOS or WSL")

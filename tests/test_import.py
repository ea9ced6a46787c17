"""The core imports NumPy and SciPy, and the rest only where it is used."""

import subprocess
import sys


def modules_after(statement):
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_the_core_does_not_load_the_heavy_ones():
    loaded = modules_after("import indknn, indknn.answering.predictor, indknn.records.shard, indknn.core.calibrate")
    assert not {"sklearn", "click", "rich", "matplotlib", "pandas", "torch"} & loaded
    assert "sklearn" in modules_after("from indknn import IndKNNClassifier")

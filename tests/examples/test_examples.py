"""The worked examples, in a small form."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from features.models import image_model, text_model
from indknn.core import clock

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_listed_and_tested():
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f"]({path.name})" in listed
        assert f'"{path.stem}"' in Path(__file__).read_text()


@pytest.mark.usefixtures("known_noise")
def test_hospital(capsys):
    assert example("hospital").main(["--visits", "6000", "--questions", "200"]) > 0.75
    assert "forgotten: patient-" in capsys.readouterr().out


@pytest.mark.usefixtures("known_noise")
def test_hospital_stay(capsys, monkeypatch):
    monkeypatch.setattr(clock, "seconds", clock.seconds)  # the example sets it
    assert example("hospital_stay").main(["--stays", "3000", "--questions", "100"]) > 0.3
    told = capsys.readouterr().out
    assert "was promised 0.25, epsilon so far 0." in told
    assert "401 days later: 2,99" in told


@pytest.mark.usefixtures("known_noise")
def test_tickets(tmp_path, capsys):
    model = str(text_model(tmp_path / "words"))
    assert example("tickets").main(["--model", model, "--tickets", "1500", "--questions", "60"]) > 0.8
    assert "private answers are right" in capsys.readouterr().out


@pytest.mark.usefixtures("known_noise")
def test_pictures(tmp_path, capsys):
    model = str(image_model(tmp_path / "filters", width=32))
    assert example("pictures").main(["--model", model, "--questions", "150"]) > 0.7
    assert "private answers are right" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["hospital", "tickets", "pictures"])
def test_help(name, capsys):
    with pytest.raises(SystemExit):
        example(name).main(["--help"])
    assert example(name).__doc__.splitlines()[0][:20] in capsys.readouterr().out


@pytest.mark.usefixtures("known_noise")
def test_a_method_of_ones_own_learns_from_noisy_means():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=2000)
    X = (np.array([[1.0, 0.2], [0.2, 1.0]])[y] + 0.1 * rng.normal(size=(2000, 2))).astype(np.float32)
    model = example("own_method").NoisyMeans((1.0, 1e-5), 2, 100, 0, {"clip": 1.0})
    model.fit(X, y)
    assert np.mean(model.predict(X) == y) > 0.9

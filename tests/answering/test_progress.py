"""How far a training is shows with a total, says before what it costs, and follows from releases alone."""

import io
import pickle

import numpy as np
import pytest

from helpers.commands import run
from helpers.people import LABELS, NAMES, QUERIES, RECORDS, SETTINGS, engine
from indknn import IndKNNClassifier
from indknn.answering.trainer import PATIENCE, Progress, TrainingLine
from indknn.models.shared_model import STEPS


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watched(model):
    """What it is told, in order. While other threads prepare a step it is told the same again, as often as it happens."""
    seen = []
    model.predictor.watch = lambda progress: seen.append(progress) if seen[-1:] != [progress] else None
    return seen


def test_the_first_query_shows_every_step_of_the_training_it_waits_for():
    model = engine()
    seen = watched(model)
    model.predict(QUERIES[:3])
    assert seen[0] == Progress(0, 0)  # before anybody is charged
    steps = [one for one in seen if one is not None and one.follow]
    assert [(one.made, one.follow) for one in steps] == [(i, STEPS - i) for i in range(STEPS)]
    assert seen[-1] is None
    seen.clear()
    model.predict(QUERIES[3:6])
    assert set(seen) <= {None}  # nothing is trained


def test_a_look_for_newcomers_that_finds_none_is_no_training():
    model = engine()
    model.predict(QUERIES[:3])
    seen = watched(model)
    for _ in model.train():
        pass
    assert set(seen) <= {None}


def test_what_shows_does_not_depend_on_who_is_there():
    seen = []
    for people in (2000, 1000):
        model = engine()
        model.forget_owners(NAMES[people:])
        seen.append(watched(model))
        model.predict(QUERIES[:3])
    assert seen[0] == seen[1]


def test_a_copy_of_an_estimator_watches_nothing_of_the_original():
    model = IndKNNClassifier(random_state=0, classes=[0, 1, 2], verbose=True).fit(RECORDS[:60], LABELS[:60])
    assert pickle.loads(pickle.dumps(model))._memory.predictor.watch is None


def line(stream, verbose, seconds):
    """A line that is told of a whole training, in which each step takes so many seconds."""
    clock = iter([i * seconds for i in range(STEPS + 1)])
    made = TrainingLine("this is what it costs", verbose, stream, clock=lambda: next(clock))
    for progress in (Progress(0, 0), *(Progress(i, STEPS - i) for i in range(1, STEPS)), None):
        made(progress)
    return stream.getvalue()


def test_on_a_terminal_a_long_training_shows_and_a_short_one_does_not():
    told = line(Terminal(), None, 1.0)
    assert told.index("this is what it costs") < told.index("step ")
    assert "step 16 of 32, about 16 s left" in told
    assert told.rstrip(" \n").endswith(f"the shared model is trained: {STEPS} steps")
    assert line(Terminal(), None, PATIENCE / STEPS / 2) == ""
    assert "step 1 of 32" in line(Terminal(), True, PATIENCE / STEPS / 2)


def test_elsewhere_nothing_is_written_unless_one_asks_for_it():
    assert line(io.StringIO(), None, 1.0) == ""
    end = "the shared model is trained: 32 steps\n"
    # a log has no line that is overwritten: it says once how long it will take
    assert line(io.StringIO(), True, 1.0) == f"this is what it costs\nstep 2 of 32, about 30 s left\n{end}"
    assert line(io.StringIO(), True, PATIENCE / STEPS / 2) == f"this is what it costs\n{end}"


@pytest.mark.parametrize(("verbose", "shown"), [(True, True), (False, False), (None, False)])
def test_an_estimator_says_before_what_it_costs(verbose, shown, capfd):
    model = IndKNNClassifier(random_state=0, classes=[0, 1, 2], verbose=verbose).fit(RECORDS[:300], LABELS[:300])
    assert "training" not in capfd.readouterr().err  # only a query or warm_up begins it
    model.predict(QUERIES[:3])
    told = capfd.readouterr().err
    cost = f"each person pays for their own part, at most {SETTINGS.model_share:.0%} of B"
    assert (cost in told) == shown
    model.predict(QUERIES[3:6])
    assert "training" not in capfd.readouterr().err


def test_the_command_says_so_too(tmp_path):
    np.savez(tmp_path / "r.npz", X=RECORDS[:300], y=LABELS[:300], owners=np.array(NAMES[:300]))
    np.savez(tmp_path / "q.npz", X=QUERIES[:5])
    words = "indknn: training the shared model, once for all analysts: each person pays for their own part, at most 90% of B"
    for first, options in (
        (["predict", "a", "q.npz", "-o", "o.csv"], []),
        (["train", "a"], []),
        (["train", "a"], ["--json"]),
    ):
        for old in tmp_path.glob("a*"):
            old.unlink()
        run("init", tmp_path / "a", "--classes", "0,1,2", code=0)
        run("add", tmp_path / "a", tmp_path / "r.npz", code=0)
        said = [tmp_path / word if word in {"a", "q.npz", "o.csv"} else word for word in first]
        told = run(*said, *options, code=0)
        assert told.stderr.count(words) == (0 if options else 1)
    run("predict", tmp_path / "a", tmp_path / "q.npz", "-o", tmp_path / "o.csv", code=0)
    assert words not in run("train", tmp_path / "a", code=0).stderr  # nobody new came

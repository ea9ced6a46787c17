"""The estimator, the command line and the service over shards."""

import re
import signal
import subprocess
import sys
import warnings

import httpx
import numpy as np
import pytest

from cluster.histories import DEFAULT
from golden.transcripts import MODES, data, settings
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.cluster import local_cluster
from indknn.errors import InvalidInputError
from indknn.store import Store


def test_the_estimator_over_processes_answers_as_without():
    X, y, owners, Q = data()
    told = []
    with local_cluster(2) as cluster:
        for shards in (None, cluster):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = IndKNNClassifier(random_state=5, classes=["a", "b", "c"], shards=shards).fit(X, y, owners)
                labels = [model.predict(Q[:60]), model.partial_fit(X[:9], y[:9], ["new"] * 9).predict(Q[60:90])]
                model.forget(["p1", "new"])
                labels.append(model.fit(X, y, owners).predict(Q[:90]))
            told.append((np.concatenate(labels).tolist(), model.privacy_spent().tolist(), model.record_ids_.tolist()))
    assert told[0] == told[1]


@pytest.mark.parametrize("shards", [0, 257, 1.5, True, "four"])
def test_a_number_of_shards_that_cannot_be_is_refused(shards):
    X, y, owners, _ = data()
    with pytest.raises(InvalidInputError, match="shards must be a whole number from 1 to 256"):
        IndKNNClassifier(shards=shards).fit(X, y, owners)


def test_a_store_is_served_from_shards(tmp_path):
    X, y, owners, Q = data()
    path = tmp_path / "people.store"
    with Store.create(path, settings(MODES[DEFAULT])) as store:
        store.add(X, y, owners)
    command = [
        sys.executable,
        "-c",
        "from indknn.cli import main; main()",
        "serve",
        str(path),
        "--port",
        "0",
        "--shards",
        "2",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        url = re.search(r"http://\S+", run.stdout.readline()).group()
        tensor = {"name": "features", "shape": [5, 8], "datatype": "FP64", "data": Q[:5].ravel().tolist()}
        answer = httpx.post(f"{url}/v2/models/people/infer", json={"inputs": [tensor]}, timeout=120)
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 0
    labels = answer.json()["outputs"][0]["data"]
    with Store(path) as store:  # what shards were asked is known without them
        assert store.predict(Q[:5]).tolist() == labels


def test_ray_without_a_number_of_shards_is_refused(tmp_path):
    Store.create(tmp_path / "people.store", settings(MODES[DEFAULT])).close()
    result = run("serve", str(tmp_path / "people.store"), "--ray", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "--ray needs --shards" in result.output


@pytest.mark.parametrize(
    "command", [["start", "--address", "10.0.0.1"], ["status", "x.store", "--ray", "10.0.0.1:6379"]]
)
def test_ray_that_others_can_reach_needs_a_token(command, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    result = run("cluster", *command)
    assert result.exit_code == 2
    assert "RAY_AUTH_MODE=token" in result.output

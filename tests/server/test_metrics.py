"""The figures for operators: by stage, of one meaning everywhere, and the files that use them."""

import json
import re
from pathlib import Path

import pytest

from indknn.server.metrics import STAGES
from indknn.store.keyfile import create, keys_path
from server.serving import application, make_store, rows

DOCS = Path(__file__).parents[2] / "docs"


def value(text, name):
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])


def test_every_stage_is_timed(client):
    client.ask(rows(1))
    client.ask(rows(2))
    text = client("GET", "/metrics").text
    for stage in STAGES:
        assert value(text, f'indknn_stage_seconds_count{{stage="{stage}"}}') == 2, stage
    assert "_created" not in text


def test_answers_are_the_same_number_everywhere(tmp_path):
    _, key = create(keys_path(tmp_path / "a"), "analyst", "ann", max_queries=5)
    with make_store(tmp_path / "a") as store, application(store, roles=["admin"]) as client:
        admin = client.keys["admin"]
        client.ask(rows(1, 3), "k", key)
        client.ask(rows(1, 3), "k", key)  # repeated by its id
        client.ask(rows(1, 2), key=key)  # repeated by its rows
        assert client("POST", "/v1/purge", admin).status_code == 200
        client.ask(rows(2), key=key)
        text, status = client("GET", "/metrics", admin).text, client("GET", "/v1/status", admin).json()
        assert value(text, "indknn_queries_answered_total") == 4
        assert value(text, "indknn_queries_repeated_total") == 5
        assert status["answers"] == 4
        assert sum(step["answers"] for step in status["answers_over_time"]) == 4
        assert "1 of 5 are left" in client.ask(rows(3, 2), key=key).text


@pytest.mark.parametrize("name", ["alerts.yaml", "grafana-dashboard.json"])
def test_what_operators_copy_names_metrics_that_there_are(client, name):
    text = (DOCS / "monitoring" / name).read_text()
    told = client("GET", "/metrics").text
    used = set(re.findall(r"\bindknn_\w+", text))
    assert len(used) > 5
    assert all(re.search(rf"^{metric}\b|^# TYPE {metric} ", told, re.M) for metric in used), used
    assert set(re.findall(r'stage=\\?"(\w+)', text)) <= set(STAGES)
    if name.endswith("json"):
        assert json.loads(text)["panels"]


def test_the_page_lists_every_metric(client):
    page = (DOCS / "monitoring.md").read_text()
    names = set(re.findall(r"^# TYPE (indknn_\w+)", client("GET", "/metrics").text, re.M))
    assert names == set(re.findall(r"^\| `(indknn_\w+)", page, re.M))
    assert {f"`{stage}`" for stage in STAGES} <= set(re.findall(r"^\| (`\w+`) \|", page, re.M))

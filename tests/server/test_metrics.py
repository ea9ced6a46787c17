"""The figures for operators: by stage, of one meaning everywhere, and the files that use them."""

import json
import platform
import re
from pathlib import Path

import pytest

from indknn import __version__
from indknn.server.telemetry import STAGES
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
    used = set(re.findall(r"\b(?:indknn|process)_\w+", text))
    assert len(used) > 5
    assert all(re.search(rf"^{metric}\b|^# TYPE {metric} ", told, re.M) for metric in used), used
    assert set(re.findall(r'stage=\\?"(\w+)', text)) <= set(STAGES)
    if name.endswith("json"):
        assert json.loads(text)["panels"]


def test_the_page_lists_every_metric(client):
    page = (DOCS / "monitoring.md").read_text()
    text = client("GET", "/metrics").text
    assert set(re.findall(r"^# TYPE (indknn_\w+)", text, re.M)) == set(re.findall(r"^\| `(indknn_\w+)", page, re.M))
    assert set(re.findall(r"^# TYPE (process_\w+)", text, re.M)) == set(re.findall(r"`(process_\w+)`", page))
    assert {f"`{stage}`" for stage in STAGES} <= set(re.findall(r"^\| (`\w+`) \|", page, re.M))


def test_the_process_and_the_build_are_told_by_the_conventions(client, store, tmp_path):
    text = client("GET", "/metrics").text
    assert f'indknn_build_info{{python="{platform.python_version()}",version="{__version__}"}} 1.0' in text
    assert value(text, "process_resident_memory_bytes") > 1 << 20
    assert value(text, "process_open_fds") > 0
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M):
        units = ("_total", "_seconds", "_bytes", "_info", "_fds")
        counted = name.endswith(("_waiting", "_connections", "_queries", "_ready"))  # numbers of things
        assert name.endswith(units) or counted, name
        assert kind != "counter" or name.endswith("_total"), name
    assert value(text, "indknn_ready") == 1
    assert value(text, "indknn_last_backup_timestamp_seconds") == 0
    client.app.service.warm = False
    assert value(client("GET", "/metrics").text, "indknn_ready") == 0
    with application(store, backups=str(tmp_path)) as other:
        assert other("POST", "/v1/backup").status_code == 200
        assert value(other("GET", "/metrics").text, "indknn_last_backup_timestamp_seconds") > 1e9

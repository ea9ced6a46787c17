"""A served store is copied by its server while it answers; `status` and `backup` ask a running server."""

import json
import threading

import pytest
from click.testing import CliRunner

from indknn.cli.app import app
from indknn.server import app as routes
from indknn.store import Store
from indknn.store.keyfile import create, keys_path
from indknn.store.verify import problems
from server.serving import Server, application, make_store, mode, rows

BACKUP = "/v1/backup"


def test_a_backup_opens_by_itself_with_everything_that_was_answered(store, tmp_path):
    folder = tmp_path / "copies"
    folder.mkdir()
    with application(store, roles=["admin", "analyst"], backups=str(folder)) as client:
        asked = [client.ask(rows(i, 3), key=client.keys["analyst"]).json()["outputs"][0]["data"] for i in range(4)]
        told = client("POST", BACKUP, client.keys["admin"], json={"name": "monday.store"})
        assert told.status_code == 200, told.text
        assert str(tmp_path) not in told.text
        spent, trail = store.spent(), client("GET", "/v1/audit?after=0&limit=1000", client.keys["admin"]).json()
    assert told.json()["audit_entries"] <= trail["last"]
    assert told.json()["keys"]
    assert mode(folder / "monday.store") == mode(folder / "monday.store.keys") == 0o600
    with Store(folder / "monday.store") as copy:
        assert not list(problems(copy))
        assert (copy.spent() == spent).all()
        assert [copy.predict(rows(i, 3), "analyst").tolist() for i in range(4)] == asked  # repeats are free
        assert (copy.spent() == spent).all()


def test_answers_go_on_while_a_backup_is_made_and_one_is_made_at_a_time(store, tmp_path, monkeypatch):
    begun, go_on, made = threading.Event(), threading.Event(), routes.backup

    def slow(*given):
        begun.set()
        assert go_on.wait(60)
        return made(*given)

    monkeypatch.setattr(routes, "backup", slow)
    with application(store, backups=str(tmp_path)) as client:
        first = []
        thread = threading.Thread(target=lambda: first.append(client("POST", BACKUP, json={"name": "one"})))
        thread.start()
        assert begun.wait(60)
        assert client.ask(rows(1)).status_code == 200
        assert client("POST", BACKUP, json={"name": "two"}).json()["code"] == "busy"
        go_on.set()
        thread.join()
        assert first[0].status_code == 200
        assert client("POST", BACKUP, json={"name": "one"}).json()["code"] == "exists"
        assert client("POST", BACKUP).json()["backup"].startswith("indknn-20")


@pytest.mark.parametrize("name", ["../a", "/tmp/a", ".hidden", "a/b", "", "a\n", 7])
def test_a_name_is_no_path(store, tmp_path, name):
    with application(store, backups=str(tmp_path / "copies")) as client:
        assert client("POST", BACKUP, json={"name": name}).status_code == 422


def test_without_a_folder_nobody_can_ask_and_a_folder_that_is_gone_is_said(store, tmp_path, client):
    assert client("POST", BACKUP).json()["code"] == "no_backups"
    with application(store, backups=str(tmp_path / "not there")) as other:
        refused = other("POST", BACKUP)
        assert (refused.status_code, refused.json()["code"]) == (503, "backup_failed")
        assert other.ask(rows(1)).status_code == 200


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_commands_ask_a_running_server(tmp_path):
    path, key = tmp_path / "a.store", tmp_path / "admin.key"
    make_store(path).close()
    key.write_text(create(keys_path(path), "admin", "root")[1] + "\n")
    with Server(path, "--backups", str(tmp_path)) as server:
        assert run("status", path).exit_code == 3  # it is in use
        found = run("status", "--url", server.url, "--key", key)
        assert found.exit_code == 0, found.output
        assert "200 records of 200 people" in found.output
        assert server.url in found.output
        made = run("backup", "--url", server.url, "--key", key, "--name", "b.store", "--json")
        assert json.loads(made.output)["backup"] == "b.store"
        assert run("backup", "--url", server.url, "--name", "c.store").exit_code == 2  # no key
        server.stop()
    for words in (["status"], ["status", path, "--url", "http://x"], ["backup", path], ["backup"]):
        assert run(*words).exit_code == 2
    assert run("verify", tmp_path / "b.store").exit_code == 0
    assert run("status", tmp_path / "b.store").exit_code == 0

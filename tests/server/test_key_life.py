"""What becomes of keys: a lost file, a forgotten owner, a revocation while a request is on its way (rows 10 and 11)."""

import asyncio
import subprocess
import sys

import httpx
import numpy as np
import pytest

import indknn
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.errors import StoreError
from indknn.server.app import create_app
from indknn.server.service import Reports
from indknn.store import Store
from indknn.store import keyfile as keys
from indknn.store.chain import entries
from indknn.store.verify import problems
from server.serving import ENVIRONMENT, INFER, Client, Server, application, make_store, question, rows


@pytest.fixture
def path(tmp_path):
    with make_store(tmp_path / "a.store") as store:
        return store.path


def kinds(path):
    with indknn.open(path) as store:
        assert not list(problems(store))
        return [entry.kind for entry in entries(store.db)]


class TestALostFile:
    """Row 10: `.keys` was removed, and the next server let everybody in."""

    def test_a_store_that_had_keys_is_not_served_without_them(self, path):
        assert run("keys", "create", path, "--role", "admin", "--name", "root").exit_code == 0
        keys.keys_path(path).unlink()
        words = [sys.executable, "-m", "indknn", "serve", str(path), "--port", "0"]
        refused = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
        assert refused.returncode == 3
        assert "had keys, but a.store.keys is lost or empty: restore that file, make new keys" in refused.stderr
        with Server(path, "--open-on-loopback") as server:  # the operator's word
            assert httpx.get(server.url + "/v1/status", timeout=60).status_code == 200
            assert server.stop() == 0
        assert run("keys", "create", path, "--role", "admin", "--name", "root").exit_code == 0
        with Server(path) as server:
            assert httpx.delete(server.url + "/v1/owners/p1", timeout=60).status_code == 401

    @pytest.mark.parametrize("empty", [False, True])
    def test_an_application_refuses_too(self, path, empty):
        with indknn.open(path) as store:
            with application(store, roles=["admin"]):
                pass
            keys.keys_path(path).unlink()
            if empty:
                keys._write(keys.keys_path(path), keys.KeyFile(b"0"))
            for file in (None, keys.keys_path(path)):
                with pytest.raises(StoreError, match="had keys"):
                    create_app(store, keys=file)
            opened = create_app(store, open_on_loopback=True)
            assert Client(opened)("GET", "/v1/status").status_code == 200
            opened.service.close()

    def test_a_damaged_file_lets_nobody_in(self, path):
        run("keys", "create", path, "--role", "admin", "--name", "root")
        keys.keys_path(path).write_text("{")
        with indknn.open(path) as store, application(store) as client:
            assert client("GET", "/v1/status").status_code == 401

    def test_it_is_remembered_once_with_an_entry_in_the_trail(self, path):
        for name in ("ann", "bob"):
            assert run("keys", "create", path, "--role", "analyst", "--name", name).exit_code == 0
        with indknn.open(path) as store, application(store):
            pass
        assert kinds(path).count("keys") == 1

    def test_a_key_made_while_the_server_runs_is_remembered_by_it(self, path):
        with indknn.open(path) as store, application(store) as client:
            assert client("GET", "/v1/status").status_code == 200
            assert (
                run("keys", "create", path, "--role", "admin", "--name", "root").exit_code == 0
            )  # the store is locked
            client.app.service.keys.refresh(force=True)
            assert client("GET", "/v2/health/live").status_code == 200
        assert "keys" in kinds(path)

    def test_keys_need_no_witness(self, path, tmp_path):
        with Store(path, witness=tmp_path / "w"):
            pass
        assert run("keys", "create", path, "--role", "admin", "--name", "root").exit_code == 0
        with Store(path, witness=tmp_path / "w") as store:
            assert [entry.kind for entry in entries(store.db)][-1] == "keys"

    def test_a_store_that_never_had_keys_is_open_as_before(self, path):
        with indknn.open(path) as store, application(store) as client:
            assert client("GET", "/v1/status").status_code == 200
        assert "keys" not in kinds(path)


class TestForgottenOwners:
    """Row 11: `.keys` kept a forgotten owner's name."""

    NAME = "somebody-quite-rare"

    @pytest.fixture
    def store(self, path):
        with indknn.open(path) as opened:
            opened.add(rows(1), ["a"], [self.NAME])
            _, self.text = keys.create(keys.keys_path(path), "owner", f"key of {self.NAME}", owner=self.NAME)
            self.other = keys.create(keys.keys_path(path), "owner", "p1", owner="p1")[0]
            yield opened

    def check(self, store):
        for file in store.path.parent.iterdir():
            if file.name != "a.store.lock":
                assert self.NAME.encode() not in file.read_bytes(), file
        kept, gone = sorted(keys.read_key_file(keys.keys_path(store.path)).keys, key=lambda k: k.revoked is not None)
        assert kept == self.other
        assert (gone.owner, gone.role) == (None, "owner")
        with application(store) as client:
            assert client("GET", f"/v1/owners/{self.NAME}", self.text).status_code == 401

    def test_by_the_store_in_the_old_bytes_too(self, store):
        with open(keys.keys_path(store.path), "rb") as old:  # as whoever reads the disk has it
            receipt = store.forget([self.NAME])
            assert not old.read().strip(b"\0")
        assert "keys bound to the owner's name were revoked" in receipt["keys"]
        self.check(store)

    def test_by_records_and_not_by_another_owner_for_them(self, store):
        shard = store.engine.shard
        (record,) = shard.record_ids()[shard.slots_of_owners([self.NAME])].tolist()
        with application(store, roles=["curator"]) as client:
            body = {"records": [{"features": rows(3)[0].tolist(), "label": "a", "owner": "new", "id": record}]}
            told = client("POST", "/v1/records", client.keys["curator"], json=body)
            assert told.status_code == 422
            assert "never changes its owner" in told.text
        store.forget(records=[record])
        names = {key.name for key in keys.read_key_file(keys.keys_path(store.path)).keys}
        assert names == {"forgotten", "p1", "curator"}

    def test_by_the_command(self, store):
        store.close()
        assert run("forget", store.path, self.NAME).exit_code == 0
        with indknn.open(store.path) as again:
            self.check(again)

    def test_by_their_own_hand_with_a_receipt(self, store):
        with application(store) as client:
            told = client("DELETE", f"/v1/owners/{self.NAME}", self.text)
            assert (told.status_code, told.json()["owners"]) == (200, [self.NAME])
        self.check(store)

    def test_who_is_fitted_again_keeps_their_key(self, tmp_path):
        names, path = [f"p{i}" for i in range(40)], tmp_path / "b.store"
        X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
        model = IndKNNClassifier(classes=[0, 1], store=path).fit(X, y, owners=names)
        for name in ("p1", "p39"):
            keys.create(keys.keys_path(path), "owner", name, owner=name)
        model.fit(X[:30], y[:30], owners=names[:30])
        stays, leaves = keys.read_key_file(keys.keys_path(path)).keys
        assert (stays.owner, stays.revoked) == ("p1", None)
        assert leaves.owner is None
        assert leaves.revoked is not None
        model._engine.close()

    def test_an_erasure_that_fails_is_told_and_can_be_repeated(self, store, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(keys, "_write", full)
            with pytest.raises(StoreError, match="nothing was changed"):
                store.forget([self.NAME])
        assert len(store.engine.shard.slots_of_owners([self.NAME])) == 1
        store.forget([self.NAME])
        self.check(store)


class TestRevokedOnTheWay:
    """Row 11: a request that began before a revocation was answered after it."""

    def test_an_answer_is_charged_but_not_told(self, store, monkeypatch):
        compute = Store.compute

        def slow(self, requests):
            if requests:  # not when nobody asks, and what is owed is committed
                keys.revoke(keys.keys_path(self.path), "analyst")
            return compute(self, requests)

        monkeypatch.setattr(Store, "compute", slow)
        with application(store, roles=["analyst"]) as client:
            response = client.ask(rows(1), key=client.keys["analyst"])
        assert response.status_code == 401
        assert "outputs" not in response.text
        assert store.db.execute("SELECT count(*) FROM answers").get == 1
        assert store.spent().max() > 0

    def test_reports_are_not_told(self, store, monkeypatch):
        report = Reports.moment

        def slow(self, *given):
            keys.revoke(keys.keys_path(self.store.path), "auditor")
            return report(self, *given)

        monkeypatch.setattr(Reports, "moment", slow)
        with application(store, roles=["auditor"]) as client:
            response = client("GET", "/v1/status", client.keys["auditor"])
        assert response.status_code == 401
        assert set(response.json()) == {"error", "code"}

    @pytest.mark.parametrize(("role", "path"), [("analyst", INFER), ("curator", "/v1/records")])
    def test_a_body_that_arrives_after_it_does_nothing(self, store, role, path):
        records = {"records": [{"features": rows(1)[0].tolist(), "label": "a", "owner": "late"}]}
        body = httpx.Request("POST", "http://x", json=question(rows(1)) if role == "analyst" else records).content

        async def parts():
            yield body[:10]
            keys.revoke(keys.keys_path(store.path), role)
            yield body[10:]

        async def send(app, key):
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
                return await client.post(path, content=parts(), headers=headers)

        with application(store, roles=[role]) as client:
            assert asyncio.run(send(client.app, client.keys[role])).status_code == 401
        assert store.db.execute("SELECT count(*) FROM answers").get == 0
        assert len(store.engine.shard) == 200

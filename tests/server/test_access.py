"""Who may do what, on every route; and what an open server refuses."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.routing import Match

from helpers.commands import run
from indknn.errors import InvalidInputError
from indknn.server.gate import PERMISSIONS, permission_of
from indknn.server.serve import refuse_exposed
from indknn.store.keyfile import ROLES, create, keys_path
from server.serving import INFER, Client, application, make_store, question, rows

RECORDS = {"records": [{"features": [1, 0, 0, 0], "label": "a", "owner": "new"}]}
REQUESTS = {
    "session": ("GET", "/v1/session", {}),
    "model": ("GET", "/v2/models/indknn", {}),
    "predict": ("POST", INFER, {"json": question(rows(1))}),
    "status": ("GET", "/v1/status", {}),
    "audit": ("GET", "/v1/audit", {}),
    "metrics": ("GET", "/metrics", {}),
    "verify": ("POST", "/v1/verify", {}),
    "keys": ("GET", "/v1/keys", {}),
    "backup": ("POST", "/v1/backup", {}),
    "curate": ("POST", "/v1/records", {"json": RECORDS}),
    "statement": ("GET", "/v1/owners/p1", {}),
    "lower": ("PATCH", "/v1/owners/p1", {"json": {"epsilon": 0.25}}),
    "forget": ("DELETE", "/v1/owners/p1", {}),
}
PUBLIC = (
    "GET /",
    "GET /v1/sign-in",
    "GET /v1/signing-key",
    "GET /console/{name}",
    "GET /v2/health/live",
    "GET /v2/health/ready",
    "GET /v2",
)
ROOT = Path(__file__).parents[2]
ROUTE = re.compile(r"\b(GET |POST |PATCH |DELETE |)`?(/v[12]/[\w/{}.-]*[\w}])")
EXPECTED = {
    "analyst": {"session", "model", "predict"},
    "curator": {"session", "model", "status", "audit", "metrics", "verify", "curate", "statement", "lower", "forget"},
    "owner": {"session", "model", "statement", "lower", "forget"},
    "auditor": {"session", "model", "status", "audit", "metrics", "verify"},
    "admin": set(REQUESTS),
}


def is_problem(response, code=None):
    answer = response.json()
    assert set(answer) == {"error", "code"}
    assert "\n" not in answer["error"]
    return code is None or answer["code"] == code


def test_every_role_on_every_route(store):
    assert set(EXPECTED) == set(ROLES)
    assert set(REQUESTS) == set(PERMISSIONS)
    with application(store, roles=ROLES, backups=str(store.path.parent)) as client:
        for role in ROLES:
            for what, (method, path, options) in REQUESTS.items():
                store.add([[1.0, 0, 0, 0]], ["a"], ["p1"], ["a record that stays"])
                if role == "owner":  # forgetting p1 ends the keys of p1
                    client.keys[role] = create(keys_path(store.path), role, role, owner="p1")[1]
                response = client(method, path, client.keys[role], **options)
                assert (response.status_code == 200) == (what in EXPECTED[role]), (role, what, response.text)
                if what not in EXPECTED[role]:
                    assert response.status_code == 403
                    assert is_problem(response, "forbidden")
            if role == "owner":
                client.keys[role] = create(keys_path(store.path), role, role, owner="p1")[1]
            assert client("GET", "/v1/session", client.keys[role]).json()["can"] == sorted(
                EXPECTED[role], key=list(PERMISSIONS).index
            )


def test_without_a_key_nothing_but_health_is_told(store):
    with application(store, roles=["admin"]) as client:
        for method, path, options in REQUESTS.values():
            for key in (None, "indknn_wrong", "x" * 5000):
                response = client(method, path, key, **options)
                assert response.status_code == 401
                assert is_problem(response, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert client("GET", path).status_code == 200


def test_a_newline_at_the_end_of_a_path_opens_nothing(store):
    """The routes' patterns end in `$`, which matches before it: `/metrics%0A` must not be another path to the guard."""
    with application(store, roles=["analyst", "admin"]) as client:
        for method, path, options in REQUESTS.values():
            for key in (None, *client.keys.values()):
                assert client(method, path + "%0A", key, **options).status_code in {401, 404}, path
        assert len(store.engine.shard) == 200
        assert client("GET", "/openapi.json").status_code == 401  # it tells the classes


GUARDS = {
    "GET /v1/session": "session",
    "GET /openapi.json": "session",
    "GET /v2/models/{name}": "model",
    "GET /v2/models/{name}/versions/{version}": "model",
    "GET /v2/models/{name}/ready": "model",
    "GET /v2/models/{name}/versions/{version}/ready": "model",
    "POST /v2/models/{name}/infer": "predict",
    "POST /v2/models/{name}/versions/{version}/infer": "predict",
    "GET /v1/status": "status",
    "GET /v1/analysts": "status",
    "GET /v1/model": "curate",
    "GET /v1/audit": "audit",
    "GET /metrics": "metrics",
    "POST /v1/verify": "verify",
    "POST /v1/records": "curate",
    "DELETE /v1/records": "curate",
    "POST /v1/train": "curate",
    "POST /v1/purge": "curate",
    "GET /v1/owners": "curate",
    "GET /v1/holds": "curate",
    "POST /v1/holds": "curate",
    "DELETE /v1/holds": "curate",
    "POST /v1/backup": "backup",
    "GET /v1/keys": "keys",
    "POST /v1/keys": "keys",
    "POST /v1/keys/{id}/rotate": "keys",
    "DELETE /v1/keys/{id}": "keys",
    "GET /v1/owners/{id}": "statement",
    "PATCH /v1/owners/{id}": "lower",
    "DELETE /v1/owners/{id}": "forget",
    **dict.fromkeys(PUBLIC),
}
"""Who may call what, a second time: nobody opens a route without changing this list."""


def routes(client):
    """All routes of the application, with the permission that each needs."""
    found = {}
    for route in client.app.app.routes:
        for method in route.methods:
            found[f"{method} {route.path.replace(':path', '')}"] = permission_of(route.endpoint)
    return found


def test_every_route_says_which_permission_it_needs(client):
    assert routes(client) == GUARDS


def test_the_document_and_the_pages_name_no_route_that_is_not_there(client):
    known = set(routes(client))
    document = client("GET", "/openapi.json").json()["paths"]
    written = {f"{method.upper()} {path}" for path, methods in document.items() for method in methods}
    assert written == known - {"GET /", "GET /console/{name}", "GET /openapi.json"}
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = {found for page in pages for found in ROUTE.findall(page.read_text())}
    assert len(named) > 20
    methods = ("GET", "POST", "PATCH", "DELETE")
    for method, path in named:
        asked = [
            {"type": "http", "path": path.replace("{", "").replace("}", ""), "method": m}
            for m in methods
            if method.strip() in {m, ""}
        ]
        found = [route.matches(scope)[0] for route in client.app.app.routes for scope in asked]
        assert Match.FULL in found, f"{method} {path}"


def test_a_route_without_a_permission_is_closed(store):
    with application(store, roles=["admin"]) as client:
        client.app.app.add_api_route("/v1/forgotten", lambda: {}, methods=["GET"])
        with pytest.raises(AttributeError):
            routes(client)
        for key in (None, client.keys["admin"]):
            assert client("GET", "/v1/forgotten", key).status_code == 500


def test_nothing_of_a_body_is_read_before_its_sender_may_send_it(store):
    async def receive():
        raise AssertionError("a byte of the body was asked for")

    with application(store, roles=["auditor"]) as client:
        known = f"Bearer {client.keys['auditor']}".encode()
        for guarded, permission in GUARDS.items():
            method, path = guarded.split()
            for key in (b"Bearer wrong", known):
                if permission is not None and (key != known or permission not in EXPECTED["auditor"]):
                    answer = asyncio.run(refused(client.app, method, path, key, receive))
                    assert answer in {401, 403}, guarded


async def refused(app, method, path, key, receive):
    scope = {"type": "http", "method": method, "path": path, "headers": [(b"authorization", key)], "query_string": b""}
    sent = []

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"]


def test_an_owner_sees_nobody_else_and_not_whether_they_exist(store):
    with application(store, roles=["owner"]) as client:
        key = client.keys["owner"]
        assert client("GET", "/v1/owners/p1", key).json()["owner"] == "p1"
        told = {
            client(m, f"/v1/owners/{who}", key).text for m in ("GET", "DELETE") for who in ("p2", "nobody", "int:3")
        }
        assert len(told) == 1
        assert client("GET", "/v1/owners/p2", key).status_code == 403
        assert client("DELETE", "/v1/owners/p1", key).json()["owners_forgotten"] == 1


def test_an_open_server_talks_to_this_machine_only(store):
    with application(store) as client:
        for host in ("evil.example", "10.0.0.1", "["):
            assert is_problem(client("GET", "/v1/status", headers={"host": host}), "not_loopback")
        for origin in ("http://evil.example", "null", "http://127.0.0.1:9", "http://["):
            response = client("POST", "/v1/records", headers={"origin": origin}, json=RECORDS)
            assert response.status_code == 403
        assert Client(client.app, host="localhost")("GET", "/v1/status").status_code == 200
        assert client("GET", "/v1/status", headers={"origin": "http://127.0.0.1"}).status_code == 200


def test_an_open_server_serves_nobody_through_a_proxy(client):
    """The proxy is on loopback, those whom it lets in are not."""
    for name in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
        response = client("GET", "/v1/status", headers={name: "for=192.0.2.7"})
        assert response.status_code == 403
        assert is_problem(response, "not_loopback")


def test_beyond_loopback_there_must_be_keys_and_encryption(tmp_path):
    path = tmp_path / "a.store"
    make_store(path).close()
    refuse_exposed(path, "127.0.0.1", tls=False, behind_proxy=False)
    with pytest.raises(InvalidInputError, match="no keys"):
        refuse_exposed(path, "0.0.0.0", tls=True, behind_proxy=True)
    with pytest.raises(InvalidInputError, match="behind-proxy lets others in and there are no keys"):
        refuse_exposed(path, "127.0.0.1", tls=False, behind_proxy=True)
    result = run("serve", str(path), "--host", "0.0.0.0", "--port", "0")
    assert result.exit_code == 2
    assert "beyond loopback" in result.output
    create(keys_path(path), "admin", "root")
    with pytest.raises(InvalidInputError, match="in the clear"):
        refuse_exposed(path, "::", tls=False, behind_proxy=False)
    refuse_exposed(path, "::", tls=True, behind_proxy=False)
    refuse_exposed(path, "::", tls=False, behind_proxy=True)


def test_every_answer_carries_the_same_care(store):
    with application(store, roles=["admin"]) as client:
        for method, path, options in [*REQUESTS.values(), ("GET", "/nope", {}), ("PUT", INFER, {})]:
            for key in (None, client.keys["admin"]):
                response = client(method, path, key, **options)
                assert "default-src 'none'" in response.headers["content-security-policy"]
                assert response.headers["x-content-type-options"] == "nosniff"
                assert response.headers["referrer-policy"] == "no-referrer"
                assert response.headers["cache-control"] == "no-store"


def test_the_console_is_served_and_nothing_beside_it(client):
    assert client("GET", "/").headers["content-type"].startswith("text/html")
    for name in ("..%2fapp.py", "app.py", "%2e%2e%2fkeys.py", ".hidden", "x.html"):
        assert client("GET", f"/console/{name}").status_code == 404


def test_without_the_extra_one_line_says_what_to_install():
    code = "import sys; sys.modules['fastapi'] = None; from indknn.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code, "serve", "x.store"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == "indknn: this needs 'fastapi': pip install 'indknn[server]'\n"

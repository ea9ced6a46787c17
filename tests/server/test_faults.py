"""A real server process: killed, stopped, and talked to badly."""

import json
import signal
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from helpers.commands import run
from indknn.server import limits
from indknn.store import Store
from indknn.store import keyfile as keys
from indknn.store.verify import problems
from server.killing import ANALYSTS, ENDLESS, Campaign
from server.serving import INFER, Server, make_store, question, rows, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "a.store"
    make_store(path).close()
    with Server(path, "--max-body", "20000") as made:
        yield made
        assert made.stop() == 0
    with Store(path) as store:
        assert not list(problems(store))


def talk(server, data, seconds=60.0):
    """Send bytes, read until the server has answered or hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as s:
        s.sendall(data)
        got = b""
        try:
            while piece := s.recv(65536):
                got += piece
                if b"\r\n\r\n" in got and got.endswith(b"}"):
                    break
        except TimeoutError:
            pass
        return got


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{}, ENDLESS], ids=["Algorithm 3", "endless"])
def test_killed_under_load_what_was_answered_is_charged(tmp_path, mode):
    campaign = Campaign(tmp_path, **mode)
    for seconds in (0.4, 0.15):  # on a busy machine a round may end before anything was answered
        campaign.round(seconds)
    campaign.round(0.7, until=lambda: {analyst for analyst, _ in list(campaign.told)} == set(ANALYSTS))
    assert campaign.kills == 3
    assert campaign.found.total == 0, campaign.found


@pytest.mark.slow
def test_the_harness_sees_a_server_that_answers_too_early(tmp_path):
    campaign = Campaign(tmp_path, program="server.early", changes=False)  # a change would commit what is open
    campaign.round(0.0, until=lambda: campaign.told)
    assert campaign.found.uncharged


@pytest.mark.slow
def test_stopped_under_load_everything_is_finished(tmp_path):
    campaign = Campaign(tmp_path)
    assert campaign.round(0.7, signal.SIGTERM, until=lambda: campaign.told) == 0
    assert campaign.found.total == 0, campaign.found
    assert not (tmp_path / "a.store-wal").exists()  # closed and folded


@pytest.mark.slow
def test_a_stop_answers_what_is_under_way(tmp_path):
    """With a long tick the answer is due after the signal, and still comes."""
    path = tmp_path / "a.store"
    make_store(path).close()
    with Server(path, "--tick", "4") as server, ThreadPoolExecutor() as pool:
        asked = [pool.submit(httpx.post, server.url + INFER, json=question(rows(i)), timeout=60) for i in range(4)]
        charged = "indknn_queries_answered_total 4.0"
        wait_until(lambda: charged in httpx.get(server.url + "/metrics", timeout=60).text)
        assert server.stop() == 0
        assert [future.result().status_code for future in asked] == [200] * 4
        assert server.errors == ""
    with Store(path) as store:
        assert store.db.execute("SELECT count(*) FROM answers").get == 4


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_the_one_shape(server, data):
    head, _, body = talk(server, data).partition(b"\r\n\r\n")
    assert b" 400 " in head.split(b"\r\n")[0]
    assert set(json.loads(body)) == {"error", "code"}


def test_headers_have_an_end(server):
    line = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"
    assert b" 200 " in talk(server, line + b"X: " + b"x" * 20_000 + b"\r\n\r\n")
    assert b" 431 " in talk(server, line + b"X: " + b"x" * 40_000 + b"\r\n\r\n")
    assert b" 431 " in talk(server, line + b"".join(b"X%d: %s\r\n" % (i, b"x" * 100) for i in range(500)) + b"\r\n")
    assert b" 431 " in talk(server, b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n")
    assert b" 431 " in talk(server, line + b"X: " + b"x" * 40_000)  # a header that never ends


def test_a_body_that_is_too_long_is_refused_before_it_is_read(server):
    head = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
    assert b" 413 " in talk(server, head + b"Content-Length: 9999999999\r\n\r\n")
    chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    assert b" 413 " in talk(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)


def test_many_slow_clients_do_not_hold_up_the_others(server):
    head = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    for i, s in enumerate(slow):
        s.sendall(head[: 10 + i])
    assert httpx.post(server.url + INFER, json=question(rows(1)), timeout=20).status_code == 200  # of the 30 they have
    for s in slow:
        s.close()


@pytest.mark.slow
def test_a_request_must_arrive_in_time(tmp_path):
    path = tmp_path / "a.store"
    make_store(path).close()
    code = "import indknn.server.limits as p; p.ARRIVAL = p.LimitedProtocol.limit = 0.5\nfrom indknn.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(path), "--port", "0", "--name", "indknn"]
    assert limits.ARRIVAL == 30
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            server = type("At", (), {"port": port})
            head = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            slow = (b"", head, head + b"\r\n", head + b"\r\n{")
            with ThreadPoolExecutor() as pool:
                assert all(b" 408 " in told for told in pool.map(lambda data: talk(server, data), slow))
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_a_client_that_hangs_up_does_no_harm(server):
    body = json.dumps(question(rows(5))).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for cut in (len(head) + 3, len(head) + len(body)):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.sendall((head + body)[:cut])
    assert httpx.get(server.url + "/v2/health/ready", timeout=60).status_code == 200


@pytest.mark.slow
def test_a_key_is_revoked_while_the_server_runs(tmp_path):
    path = tmp_path / "a.store"
    make_store(path).close()
    _, text = keys.create(keys.keys_path(path), "auditor", "eve")
    with Server(path) as server:
        head = {"authorization": f"Bearer {text}"}
        assert httpx.get(server.url + "/v1/status", headers=head, timeout=60).status_code == 200
        keys.revoke(keys.keys_path(path), "eve")
        wait_until(lambda: httpx.get(server.url + "/v1/status", headers=head, timeout=60).status_code == 401)
        assert server.stop() == 0


def test_a_second_server_and_a_busy_port_are_told_in_one_line(server, tmp_path):

    other = tmp_path / "b.store"
    make_store(other).close()
    busy = run("serve", str(other), "--port", str(server.port))
    assert (busy.exit_code, busy.output.count("\n")) == (2, 1)
    taken = run("serve", str(server.path), "--port", "0")
    assert (taken.exit_code, taken.output.count("\n")) == (3, 1)
    assert "in use by process" in taken.output
    missing = run("serve", str(tmp_path / "no.store"))
    assert (missing.exit_code, missing.output.count("\n")) == (3, 1)


@pytest.mark.slow
def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        [
            *[
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-keyout",
            ],
            key,
            "-out",
            cert,
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("there is no openssl to make a certificate with")
    path = tmp_path / "a.store"
    make_store(path).close()
    with Server(path, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(cert))
        trust.check_hostname = False
        assert httpx.get(server.url + "/v2/health/live", verify=trust, timeout=60).status_code == 200
        trust.maximum_version = ssl.TLSVersion.TLSv1_2
        for ciphers, good in (("ECDHE+AESGCM", True), ("ECDHE+SHA:!AESGCM", False)):
            trust.set_ciphers(ciphers)
            raw = socket.create_connection(("127.0.0.1", server.port))
            try:
                with trust.wrap_socket(raw) as secured:
                    assert good, secured.cipher()
            except ssl.SSLError:
                assert not good
        assert server.stop() == 0


def test_who_sends_too_much_is_told_and_may_go_on(server):
    """The rest of a body that was refused is thrown away, up to a megabyte; the connection stays."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for _ in range(2):
            assert http.post(INFER, content=b"x" * 500_000).status_code == 413
        assert http.post(INFER, json=question(rows(1))).status_code == 200

"""Receipts and exported trails can be checked without the store; whoever changes one is found out."""

import json
import subprocess
import sys
import textwrap
from dataclasses import asdict

import numpy as np
import pytest

from conftest import blobs
from helpers.commands import run
from indknn import proof
from indknn.errors import InvalidInputError
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.backup import backup
from indknn.store.chain import published
from indknn.store.verify import problems
from server.serving import application

X, Y = blobs(60, 2, 4)
SETTINGS = Settings(n_features=4, classes=(0, 1), tau=0.4, sigma2=0.5, max_queries=100, reuse="none")


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "people.store", SETTINGS) as made:
        made.add(X, Y, [f"p{i}" for i in range(60)])
        made.predict(X[:3])
        yield made


def public(store):
    return proof.read_keys(json.dumps(published(store.db)))


def fault(document, keys):
    return proof.check([json.dumps(document)], keys).problem


@pytest.fixture
def trail(store, tmp_path):
    """The lines of an exported trail, and the public keys."""
    for i in range(4):
        store.forget([f"p{i}"])
    keys = public(store)
    store.close()
    run("export", "audit", store.path, "-o", tmp_path / "audit.jsonl", code=0)
    return (tmp_path / "audit.jsonl").read_text().splitlines(keepends=True), keys


def test_every_receipt_is_signed_and_any_change_is_found(store):
    keys = public(store)
    for receipt in (store.forget(["p1", "p2"]), store.forget(records=[7]), store.purge(), store.rewrite()):
        assert fault(receipt, keys) is None
        again = json.loads(json.dumps(receipt, indent=3, sort_keys=True))  # copied by another program
        assert fault(again, keys) is None
        for name, value in receipt.items():
            if name in {"signature", "signed_with"}:
                continue
            changed = value + 1 if isinstance(value, int) else [value] if isinstance(value, list) else value + "x"
            assert "signature does not fit" in fault({**receipt, name: changed}, keys), name
        assert "signature does not fit" in fault({**receipt, "more": 1}, keys)
        assert fault({name: v for name, v in receipt.items() if name != "signature"}, keys) == "it is not signed"
    assert "another key" in fault(receipt, proof.read_keys("ab" * 32))


def test_a_figure_in_a_receipt_may_be_written_in_another_way():
    signer = proof.Signer(bytes(32))
    signed = signer.signed({"receipt": "erasure", "at": "2026", "left": [{"spent": 2.0, "delta": 1e-5}]})
    text = json.dumps(signed).replace("2.0", "2").replace("1e-05", "0.00001")
    assert proof.check([text], [proof.PublicKey(signer.public)]).problem is None


def test_a_receipt_that_says_something_twice_is_refused(store):
    text = json.dumps(store.forget(["p1"]))
    assert proof.check([text], public(store)).problem is None
    twice = '{"records": 40, ' + text[1:]  # some readers would show the first
    assert proof.check([twice], public(store)).problem is not None


def test_a_trail_is_genuine_with_its_head(trail):
    lines, keys = trail
    found = proof.check(lines, keys)
    assert found.problem is None
    assert found.entries == len(lines) - 1


@pytest.mark.parametrize("at", [1, 3, 6])
def test_the_first_bad_entry_is_named(trail, at):
    lines, keys = trail
    lost = proof.check(lines[: at - 1] + lines[at:], keys)
    assert lost.problem == f"audit trail: entry {at} is missing"
    plain = json.loads(lines[at - 1])
    for name, value in (("at", "2020-01-01T00:00:00Z"), ("kind", "purge"), ("text", '{"records": 7}')):
        forged = {**plain, name: value} | ({"body": {"records": 7}} if name == "text" else {})
        found = proof.check([*lines[: at - 1], json.dumps(forged) + "\n", *lines[at:]], keys)
        assert found.problem == f"audit trail: the hash of entry {at} does not fit", name
    shown = {**plain, "body": {"records": 7}}  # what people read, beside the text that the hash covers
    found = proof.check([*lines[: at - 1], json.dumps(shown) + "\n", *lines[at:]], keys)
    assert f"entry {at} cannot be read" in found.problem
    broken = proof.check([*lines[: at - 1], '{"position": ' + "\n", *lines[at:]], keys)
    assert at == 1 or f"entry {at} cannot be read" in broken.problem
    assert broken.problem is not None


def test_a_trail_that_was_cut_is_refused(trail):
    lines, keys = trail
    for length in range(1, len(lines)):
        assert f"cut off after entry {length}" in proof.check(lines[:length], keys).problem
        both = proof.check([*lines[:length], lines[-1]], keys)  # cut, with the head of the whole
        assert length == len(lines) - 1 or f"signed for {len(lines) - 1}" in both.problem
    assert "lines follow" in proof.check([*lines, lines[0]], keys).problem


def test_a_trail_with_another_end_does_not_fit_its_head(trail):
    lines, keys = trail
    *kept, end, head = map(json.loads, lines)
    forged = proof.link(bytes.fromhex(kept[-1]["hash"]), end["position"], end["at"], "purge", end["text"]).hex()
    entries = [*kept, {**end, "kind": "purge", "hash": forged}]
    assert "signed for" in proof.check([json.dumps(one) + "\n" for one in (*entries, head)], keys).problem
    resigned = {**head, "hash": forged}
    assert "does not fit" in proof.check([json.dumps(one) + "\n" for one in (*entries, resigned)], keys).problem


def test_a_receipt_is_no_head_and_a_head_is_no_receipt(trail, store, tmp_path):
    lines, keys = trail
    with Store(store.path) as opened:
        receipt = opened.forget(["p9"])
    assert proof.check([*lines[:-1], json.dumps(receipt)], keys).problem is not None
    assert proof.check([lines[-1]], keys).problem is not None


def test_a_new_key_leaves_what_was_signed_and_refuses_later_dates(store, monkeypatch):
    early, old = store.forget(["p1"]), store.signer
    monkeypatch.setattr("indknn.store.chain.now", lambda: "2990-01-01T00:00:00Z")
    store.renew_signing_key()
    monkeypatch.setattr("indknn.store.chain.now", lambda: "2990-01-02T00:00:00Z")
    late, keys = store.forget(["p2"]), public(store)
    assert [key.until for key in keys] == ["2990-01-01T00:00:00Z", None]
    assert fault(early, keys) is None
    assert fault(late, keys) is None
    assert late["signed_with"] != early["signed_with"]
    facts = {name: v for name, v in late.items() if name not in {"signature", "signed_with"}}
    assert "key was replaced" in fault(old.signed(facts), keys)
    assert not list(problems(store))
    with Store.create(store.path.with_name("other.store"), SETTINGS) as other:
        assert other.signer.public not in {key.key for key in keys}


def test_keys_survive_reopening_and_a_backup(store, tmp_path):
    keys = public(store)
    backup(store, tmp_path / "copy.store")
    store.close()
    for path in (store.path, tmp_path / "copy.store"):
        with Store(path) as opened:
            assert fault(opened.forget(["p5"]), keys) is None


def test_the_trail_says_which_keys_were_in_use(trail, store):
    with Store(store.path) as opened:
        opened.renew_signing_key()
        named = [e["body"] for e in map(json.loads, trail[0][:-1]) if "signing" in e["body"]]
        assert [facts["signing"] for facts in named] == [public(opened)[0].key]


def test_commands_check_both_with_clear_codes(store, tmp_path):
    receipt = tmp_path / "receipt.json"
    store.close()
    run("forget", store.path, "p3", "--receipt", receipt, code=0)
    listed = run("keys", "public", store.path, "--json", code=0).output
    (tmp_path / "people.pub").write_text(listed)
    (key,) = json.loads(listed)["keys"]
    (tmp_path / "printed.pub").write_text(run("keys", "public", store.path, code=0).output)
    for given in (tmp_path / "people.pub", tmp_path / "printed.pub", key["key"]):
        assert "is genuine" in run("check", receipt, "--key", given, code=0).output
    run("keys", "renew-signing", store.path, code=0)
    run("export", "audit", store.path, "-o", tmp_path / "audit.jsonl", code=0)
    assert "another key" in run("check", tmp_path / "audit.jsonl", "--key", key["key"], code=1).output
    (tmp_path / "people.pub").write_text(run("keys", "public", store.path, "--json", code=0).output)
    told = json.loads(run("check", tmp_path / "audit.jsonl", "--key", tmp_path / "people.pub", "--json", code=0).output)
    assert told["ok"]
    assert told["entries"] > 3
    receipt.write_text(receipt.read_text().replace('"records": 1', '"records": 2'))
    assert "does not fit" in run("check", receipt, "--key", tmp_path / "people.pub", code=1).output
    (tmp_path / "noise").write_bytes(np.arange(256, dtype=np.uint8).tobytes())
    assert "neither a receipt" in run("check", tmp_path / "noise", "--key", key["key"], code=1).output
    assert "a key has 64 hexadecimal digits" in run("check", receipt, "--key", "not a key", code=2).stderr
    printed = run("keys", "public", store.path, code=0).output  # two keys, and when the first was replaced
    assert [asdict(one) for one in proof.read_keys(printed)] == json.loads((tmp_path / "people.pub").read_text())[
        "keys"
    ]


def test_check_needs_nothing_of_a_store(store, tmp_path):
    (tmp_path / "receipt.json").write_text(json.dumps(store.forget(["p3"])))
    script = f"""
        import sys
        sys.modules.update(dict.fromkeys(["apsw", "psycopg", "fastapi"]))  # as if they were not installed
        from indknn.cli import main
        sys.argv = ["indknn", "check", "receipt.json", "--key", "{public(store)[0].key}"]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "is genuine" in done.stdout


def test_a_server_publishes_the_keys_to_everybody_and_signs(store):
    with application(store, roles=["curator", "auditor"]) as client:
        keys = proof.read_keys(client("GET", "/v1/signing-key").text)
        assert keys == public(store)
        client.key = client.keys["curator"]
        assert proof.check([client("DELETE", "/v1/owners/p8").text], keys).problem is None
        client.key = client.keys["auditor"]
        first = client("GET", "/v1/audit?limit=2").json()
        rest = client("GET", f"/v1/audit?after={first['next']}&limit=1000").json()
        assert first["head"] is None
        lines = [json.dumps(one) + "\n" for one in (*first["entries"], *rest["entries"], rest["head"])]
        assert proof.check(lines, keys).problem is None


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', '{"keys": [{"key": "ab"}]}', "zz" * 32, "[1]"])
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(InvalidInputError, match="not a public key"):
        proof.read_keys(text)


@pytest.mark.parametrize(
    "deep",
    ["[" * 100_000, '{"receipt":' + "[" * 100_000, '{"receipt": "x", "signed_with": "%s", "signature": "00", "a": %s}'],
)
def test_a_file_that_is_nested_without_end_is_refused_like_any_other(store, deep):
    keys = public(store)
    text = deep % (keys[0].key, "[" * 900 + "]" * 900) if "%s" in deep else deep
    assert "nested too deeply" in proof.check([text], keys).problem
    with pytest.raises(InvalidInputError, match="not a public key"):
        proof.read_keys('{"keys":' + "[" * 100_000)

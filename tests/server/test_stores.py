"""Several stores behind one server: the key says which one, and a person's statement adds up."""

import httpx
import pytest
from click.testing import CliRunner

from indknn.cli.app import app as cli
from indknn.core import accounting
from indknn.errors import InvalidInputError
from indknn.ledger.figures import added_up
from indknn.server.app import create_app
from indknn.server.serve import Stores, _witness
from indknn.settings import ServerOptions
from indknn.store.keyfile import ROLES, create, keys_path, revoke
from server.serving import Client, Server, make_store, question, rows, wait_until

NAMES = ("hospital", "school")


class Both:
    """Two stores in one application, and a client. `keys` is by store and role."""

    def __init__(self, folder, *, same_people=False, **changes):
        self.stores = {name: make_store(folder / f"{name}.store", **changes.get(name, {})) for name in NAMES}
        self.keys, gates = {}, []
        for name, store in self.stores.items():
            path = keys_path(store.path)
            for role in ROLES:
                self.keys[name, role] = create(
                    path, role, f"{role} of {name}", owner="p1" if role == "owner" else None
                )[1]
            gates.append(create_app(store, keys=path, options=ServerOptions(name=name)))
        self.app = Stores(gates, same_people=same_people)
        self.client = Client(self.app)

    def ask(self, name, role="analyst", model=None, seed=1):
        return self.client(
            "POST", f"/v2/models/{model or name}/infer", self.keys[name, role], json=question(rows(seed))
        )

    def close(self):
        for gate in self.app.gates:
            gate.service.close()
        for store in self.stores.values():
            store.close()


@pytest.fixture
def both(tmp_path):
    made = Both(tmp_path)
    yield made
    made.close()


def test_a_key_opens_its_store_and_no_other(both):
    for name, other in (NAMES, NAMES[::-1]):
        before = both.stores[other].spent()
        assert both.ask(name).json()["model_name"] == name
        assert (both.stores[other].spent() == before).all()
        refused = both.ask(name, model=other)
        assert refused.status_code == 404  # as for a model that is nowhere
        assert refused.text.replace(other, "X") == both.ask(name, model="nowhere").text.replace("nowhere", "X")
        session = both.client("GET", "/v1/session", both.keys[name, "admin"]).json()
        assert (session["model"], session["name"]) == (name, f"admin of {name}")
        signing = both.client("GET", "/v1/signing-key", both.keys[name, "owner"]).json()
        assert signing["keys"][0]["key"] == both.stores[name].signer.public
        listed = both.client("GET", "/v1/analysts", both.keys[name, "admin"]).text
        assert other not in listed
    assert both.client("DELETE", "/v1/owners/p1", both.keys["hospital", "curator"]).status_code == 200
    assert both.client("GET", "/v1/owners/p1", both.keys["school", "owner"]).json()["records"] == 1


def test_whoever_has_no_key_is_not_told_which_stores_there_are(both):
    paths = [f"/v2/models/{name}" for name in (*NAMES, "nowhere")] + ["/v1/status", "/metrics"]
    told = {both.client("GET", path, key).text for path in paths for key in (None,)}
    assert len(told) == 1
    told = {both.client("GET", path, "indknn_wrong").text for path in paths}
    assert len(told) == 1
    for key in (None, "indknn_wrong"):
        assert both.client("GET", "/v1/signing-key", key).status_code == 401
    key = both.keys["school", "analyst"]
    revoke(keys_path(both.stores["school"].path), "analyst of school")
    assert both.client("GET", "/v1/session", key).status_code == 401


def test_it_is_ready_when_all_are(both):
    assert both.client("GET", "/v2/health/ready", timeout=60).status_code == 200
    both.app.gates[1].service.warm = False
    assert both.client("GET", "/v2/health/ready").status_code == 503
    assert both.client("GET", "/v2/health/live").status_code == 200


def test_the_limits_are_for_all_together(both):
    one, other = (gate.service for gate in both.app.gates)
    assert one.bodies is other.bodies
    assert one.pace is other.pace
    assert one.worker is not other.worker


def mine(both, name):
    """The statement of p1, who has a key of each store, and shows that of the other one too."""
    (other,) = set(NAMES) - {name}
    keys = both.keys[name, "owner"], both.keys[other, "owner"]
    return both.client("GET", "/v1/owners/p1", keys[0], headers={"x-other-keys": keys[1]}).json()


def test_whoever_makes_the_keys_of_one_store_does_not_learn_who_is_in_another(tmp_path):
    both = Both(tmp_path, same_people=True)
    try:
        both.ask("school")
        body = {"role": "owner", "name": "x", "owner": "p1"}
        made = both.client("POST", "/v1/keys", both.keys["hospital", "admin"], json=body).json()["key"]
        others = ("", "indknn_wrong", both.keys["hospital", "admin"], both.keys["school", "curator"])
        strangers = create(keys_path(both.stores["school"].path), "owner", "p2", owner="p2")[1]
        for shown in (*others, strangers):
            told = both.client("GET", "/v1/owners/p1", made, headers={"x-other-keys": shown}).json()
            assert told["everywhere"]["stores"] == ["hospital"]
            assert told["everywhere"]["one_analyst"]["spent"] == told["one_analyst"]["spent"]
    finally:
        both.close()


def test_a_statement_adds_up_if_the_stores_are_about_the_same_people(tmp_path):
    both = Both(tmp_path, same_people=True, school={"epsilon": 2.0, "accountant": "rdp", "delta": 1e-6})
    try:
        for seed in range(5):
            for name in NAMES:
                assert both.ask(name, seed=seed).status_code == 200
        own = {n: both.client("GET", "/v1/owners/p1", both.keys[n, "curator"]).json() for n in NAMES}
        admins = {n: both.client("GET", "/v1/owners/p1", both.keys[n, "admin"]).json() for n in NAMES}
        assert own == admins  # whoever runs a store is not told who is in another one
        assert all("everywhere" not in one for one in own.values())
        for name in NAMES:
            told = mine(both, name)
            total = told.pop("everywhere")
            assert told == own[name]
            assert total == added_up(own)
            assert total["stores"] == sorted(NAMES)
            for who in ("one_analyst", "together"):
                assert total[who]["spent"] == sum(one[who]["spent"] for one in own.values()) > 0
            budget = sum(store.settings.budget for store in both.stores.values())
            assert total["one_analyst"]["budget"] == budget
            assert total["one_analyst"]["filter"] == "rdp"
            assert total["one_analyst"]["delta"] == 1e-6
            assert total["one_analyst"]["epsilon"] == accounting.epsilon(budget, 1e-6, "rdp")
            assert total["together"]["budget"] is None
        before = mine(both, "hospital")["everywhere"]
        assert both.client("DELETE", "/v1/owners/p1", both.keys["school", "admin"]).status_code == 200
        assert mine(both, "hospital")["everywhere"]["stores"] == ["hospital"]  # the key has ended
        both.keys["school", "owner"] = create(keys_path(both.stores["school"].path), "owner", "again", owner="p1")[1]
        assert mine(both, "hospital")["everywhere"] == before  # spending outlives records
    finally:
        both.close()


def test_without_the_operators_word_a_name_means_one_person_per_store(both):
    for role in ("owner", "admin"):
        assert "everywhere" not in both.client("GET", "/v1/owners/p1", both.keys["hospital", role]).json()


def test_two_stores_of_one_name_and_stores_without_keys_are_refused(tmp_path, both):
    with pytest.raises(InvalidInputError, match="a name of its own, got hospital, hospital"):
        Stores([both.app.gates[0], both.app.gates[0]])
    for name in ("a", "b"):
        make_store(tmp_path / f"{name}.store", n=0).close()
    words = ["serve", str(tmp_path / "a.store"), str(tmp_path / "b.store")]
    run = CliRunner().invoke(cli, words)
    assert run.exit_code == 2
    assert f"no keys; make one with: indknn keys create {tmp_path / 'a.store'}" in run.output
    assert "--name is for one store" in CliRunner().invoke(cli, [*words, "--name", "x"]).output
    assert _witness(tmp_path, "a") == tmp_path / "a.witness"
    assert _witness(None, "a") is None
    with pytest.raises(InvalidInputError, match="must be a folder"):
        _witness(tmp_path / "a.store", "a")


def test_a_real_server_of_two_stores(tmp_path):
    (tmp_path / "witness").mkdir()
    keys, persons = {}, {}
    for name in NAMES:
        make_store(tmp_path / f"{name}.store").close()
        keys[name] = create(keys_path(tmp_path / f"{name}.store"), "admin", "root")[1]
        persons[name] = create(keys_path(tmp_path / f"{name}.store"), "owner", "person", owner="p1")[1]
    more = [str(tmp_path / "school.store"), "--same-people", "--witness", str(tmp_path / "witness")]
    with Server(tmp_path / "hospital.store", *more, name=None) as server:
        wait_until(lambda: httpx.get(f"{server.url}/v2/health/ready").status_code == 200)
        for name in NAMES:
            headers = {"authorization": f"Bearer {keys[name]}"}
            url = f"{server.url}/v2/models/{name}/infer"
            assert httpx.post(url, json=question(rows(1)), headers=headers, timeout=60).status_code == 200
            headers = {"authorization": f"Bearer {persons[name]}", "x-other-keys": ",".join(persons.values())}
            told = httpx.get(f"{server.url}/v1/owners/p1", headers=headers, timeout=60).json()
            assert told["everywhere"]["stores"] == sorted(NAMES)
        assert server.stop() == 0
    assert sorted(file.name for file in (tmp_path / "witness").iterdir()) == ["hospital.witness", "school.witness"]

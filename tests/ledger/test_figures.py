"""What is printed follows from the ledger, says for whom it holds, and is the same through every door (rules 8, 11, 15)."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import indknn
from conftest import blobs
from helpers.asking import declared
from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.core import accounting
from indknn.core.accounting import UNIT, from_units, to_units
from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED, MemoryLedger, figures
from indknn.ledger.figures import ONE, STEPS, TOGETHER, account, by_observer, exact, guarantee, promise, statement
from indknn.settings import Settings
from indknn.store import Store, keyfile
from indknn.store.reports import status, stream
from indknn.types import GRID
from server.serving import application

X, Y = blobs(660, 3, 8)
NAMES = [f"p{i % 200}" for i in range(600)]
PLAIN = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.5, max_queries=120, reuse="none")
GLOBAL = Settings(
    n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.5, max_queries=120, reuse="none", global_epsilon=8.0
)
MODEL = Settings(n_features=8, classes=(0, 1, 2), tau=0.3, sigma2=0.1, epsilon=4.0)


@pytest.fixture(params=[PLAIN, GLOBAL, MODEL], ids=["a ledger each", "a global ledger", "a shared model"])
def store(request, tmp_path):
    """Two analysts have asked, one of them more."""
    with Store.create(tmp_path / "people.store", request.param) as made:
        declared(made, "alice", "bob").add(X[:600], Y[:600], NAMES)
        made.predict(X[600:660], "alice")
        made.predict(X[600:630], "bob")
        made.forget(["p7"])
        yield made


def command(*words):
    return run(*words, code=0).stdout


def leaves(value, path=()):
    """Every number in JSON, by where it is."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


class Overheard(SecureNoise):
    """Secure noise that the test listens to: the first draw of a query is the noise on the count."""

    def __init__(self):
        super().__init__()
        self.draws = []

    def draw(self, scale, size):
        self.draws.append(super().draw(scale, size))
        return self.draws[-1]


def recovered(difference, settings):
    """K by what one query cost somebody at κ = 1: Δρ = 1/2σ1² + 1/2σ2²K."""
    rest = difference - 1.0 / (2.0 * settings.sigma1_**2)
    return 1.0 / (2.0 * settings.sigma2_**2 * rest) if rest > 0 else None


class TestStatements:
    """Row 5: an owner read K of other analysts' queries from their own statement."""

    def test_no_figure_of_a_statement_tells_the_counts_of_others(self, tmp_path):
        settings = replace(PLAIN, sigma2=2.0, free_repeats=False)
        noise, truth, curator, owner = Overheard(), [], [], []
        with Store.create(tmp_path / "s", settings, noise=noise) as store:
            declared(store, "bob").add(np.ones((400, 8)), np.arange(400) % 3, [f"p{i}" for i in range(400)])
            with application(store, roles=["owner"]) as client:

                def look():
                    facts = client("GET", "/v1/owners/p1", client.keys["owner"]).json()
                    return dict(leaves(facts)), float(store.spent(["p1"])[0])

                before, rho = look()
                for _ in range(12):
                    noise.draws.clear()
                    store.predict(np.ones((1, 8)), "bob")
                    K = max(400 + int(noise.draws[0][0]) / GRID, 30.0)
                    after, rho_after = look()
                    truth.append(K)
                    curator.append(recovered(rho_after - rho, settings))
                    owner.append([recovered(abs(after[p] - before[p]), settings) for p in after if p in before])
                    before, rho = after, rho_after
        np.testing.assert_allclose(curator, truth, rtol=0.02)  # at full precision it is that easy
        for K, found in zip(truth, owner, strict=True):
            assert not [k for k in found if k is not None and abs(k - K) < 0.1 * K]

    @given(st.integers(0, to_units(PLAIN.budget)), st.integers(0, to_units(PLAIN.budget)))
    def test_a_figure_is_a_whole_number_of_steps_and_never_too_small(self, one, other):
        B, told = to_units(PLAIN.budget), account(PLAIN, ONE, one, rounded=True)
        steps = told.spent * STEPS / PLAIN.budget
        assert abs(steps - round(steps)) < 1e-9
        assert float(from_units(one)) <= told.spent <= PLAIN.budget
        assert told.spent - float(from_units(one)) <= PLAIN.budget / STEPS * (1 + 1e-9)
        assert told.left == pytest.approx(PLAIN.budget - told.spent)
        if -(-one * STEPS // B) == -(-other * STEPS // B):
            assert account(PLAIN, ONE, other, rounded=True) == told

    def test_what_counts_queries_or_names_analysts_is_left_out(self, store):
        text = json.dumps(statement(store.engine, "p3"))
        assert "alice" not in text
        assert "queries" not in text

    def test_the_curator_still_sees_it_exactly(self, store):
        rows = {row["owner"]: row for row in exact(store.engine)}
        spent = store.spent(["p3"])[0]
        assert rows["p3"]["together"]["spent"] == spent
        assert rows["p3"]["shared"] + sum(rows["p3"]["by_analyst"].values()) == pytest.approx(spent)
        assert rows["p3"]["queries"] > 0


class TestObservers:
    """Row 6: an ε of one analyst where only the global one is proven, a maximum instead of a sum."""

    def test_one_person_has_the_same_figures_through_every_door(self, store, tmp_path):
        told = statement(store.engine, "p3")
        with application(store, roles=["curator", "owner"]) as client:
            assert client("GET", "/v1/owners/p3", client.keys["curator"]).json() == told
        receipt = store.forget(["p3"])
        gone = statement(store.engine, "p3")
        assert gone == {**told, "records": 0}
        assert receipt["on_the_books"] == [gone]
        rows = {row["owner"]: row for row in exact(store.engine)}
        p4 = statement(store.engine, "p4")
        for who in ("one_analyst", "together"):
            row = rows["p4"][who]
            units = round(row["spent"] * UNIT)
            assert account(store.settings, row["observer"], units, rounded=True).spent == p4[who]["spent"]
            assert row["budget"] == p4[who]["budget"]
        store.close()
        assert json.loads(command("owner", store.path, "p3", "--json")) == gone
        command("export", "spent", store.path, "-o", tmp_path / "x")
        lines = [json.loads(line) for line in (tmp_path / "x").read_text().splitlines()]
        assert {line["owner"]: line for line in lines} == rows
        printed = command("owner", store.path, "p4")
        assert "per analyst" not in printed
        for who in (ONE, TOGETHER):
            assert f"{who}: spent" in printed

    def test_the_estimator_prints_the_same(self):
        model = IndKNNClassifier(tau=0.3, sigma2=0.5, max_queries=120, reuse="none", classes=[0, 1, 2])
        model.fit(X[:600], Y[:600], owners=NAMES)
        model.predict(X[600:640], analyst="alice")
        model.predict(X[600:640], analyst="bob")
        assert model.statement("p3") == statement(model._engine, "p3")
        assert model.guarantee_ == guarantee(PLAIN)
        together = model.statement("p3")["together"]["spent"]
        assert 0 <= together - model.privacy_spent(["p3"])[0] <= model.budget_ / STEPS
        assert together > model.statement("p3")["one_analyst"]["spent"]

    def test_all_together_is_a_sum_and_one_analyst_is_the_most_of_one(self, tmp_path):
        with Store.create(tmp_path / "s", PLAIN) as store:
            declared(store, "alice", "bob").add(X[:600], Y[:600], NAMES)
            store.predict(X[600:660], "alice")
            store.predict(X[600:660], "bob")
            ledger = store.engine.ledger
            spent = {scope: ledger.spent(["p3"], scope) for scope in ledger.scopes}
            found, table = by_observer(ledger, spent), np.array(list(spent.values()))
            assert (found[ONE][0], found[TOGETHER][0]) == (table.max(), table.sum())
            most = account(PLAIN, TOGETHER, int(table.sum()), rounded=False)
            assert most.epsilon_so_far == accounting.epsilon(float(from_units(int(table.sum()))), PLAIN.delta, "gdp")
            assert most.epsilon_so_far > account(PLAIN, ONE, int(table.max()), rounded=False).epsilon_so_far
            assert (most.epsilon, most.budget, most.left) == (None, None, None)  # nothing bounds it
            worst = float(store.spent().max())
            assert status(store)["together"]["spent"] == worst

    def test_what_every_analyst_sees_counts_once_for_each_and_once_together(self):
        ledger, spent = MemoryLedger(100, shared_budget=60), {}
        for scope, units in ((None, 5), (SHARED, 50), ("alice", 20), ("bob", 30)):
            spent[scope] = np.array([units])
        found = by_observer(ledger, spent)
        assert (found[ONE][0], found[TOGETHER][0]) == (50 + 30, 50 + 5 + 20 + 30)
        ledger.joint = True  # what the unnamed analyst was told shaped the model, and so counts for all
        assert by_observer(ledger, spent)[ONE][0] >= 50 + 5 + 30

    def test_with_a_global_ledger_everybody_is_told_the_global_epsilon(self, tmp_path):
        with Store.create(tmp_path / "s", GLOBAL) as store:
            declared(store, "alice", "bob").add(X[:600], Y[:600], NAMES)
            store.predict(X[600:660], "alice")
            store.predict(X[600:660], "bob")
            with application(store, roles=["analyst", "curator", "owner"]) as client:
                told = {
                    path: client("GET", path, client.keys[role]).json()
                    for path, role in (
                        ("/v1/session", "analyst"),
                        ("/v2/models/indknn", "analyst"),
                        ("/v1/status", "curator"),
                        ("/v1/owners/p1", "owner"),
                    )
                }
            promised = [(path, value) for path, value in leaves(told) if path[-1] == "epsilon"]
            assert len(promised) >= 6
            assert {value for _, value in promised} == {8.0}
            assert "epsilon = 8," in told["/v1/session"]["guarantee"]["words"]
            both = told["/v1/owners/p1"]
            assert both["one_analyst"]["spent"] == both["together"]["spent"] > 0
            assert both["one_analyst"]["budget"] == both["together"]["budget"] == GLOBAL.global_budget
        printed = command("status", tmp_path / "s") + command("owner", tmp_path / "s", "p3")
        assert set(re.findall(r"epsilon = ([\d.]+)|of ([\d.]+) promised", printed)) == {("8", ""), ("", "8")}

    def test_every_epsilon_names_its_observer_its_delta_and_its_filter(self, store):
        facts = {"status": status(store), "statement": statement(store.engine, "p3"), "g": guarantee(store.settings)}
        found = [path[:-1] for path, _ in leaves(facts) if path[-1] in {"epsilon", "epsilon_so_far"}]
        for path in {*found}:
            at = facts
            for part in path:
                at = at[part]
            assert at["observer"] in {ONE, TOGETHER}
            assert (at["delta"], at["filter"]) == (1e-5, "gdp")
        store.close()
        for line in (command("status", store.path) + command("owner", store.path, "p3")).splitlines():
            if "epsilon" in line:
                assert "analyst" in line
                assert "delta = 1e-05" in line
                assert "filter gdp" in line

    def test_a_forecast_says_which_ledger_it_is_about(self, store):
        store.predict(X[:5])
        store.close()
        for analyst, who in (("alice", "analyst 'alice'"), (None, "the analyst without a name")):
            more = [] if analyst is None else ["--analyst", analyst]
            facts = json.loads(command("forecast", store.path, "--n", 600, "--json", *more))
            assert f"the ledger of {who}, " in facts["of"]
            assert f"B = {store.settings.budget:.6g}" in facts["of"]
            assert ("for the shared model" in facts["of"]) == store.settings.advised
            assert ("the global one" in facts["of"]) == (store.settings.global_epsilon is not None)
            assert facts["of"] in command("forecast", store.path, "--n", 600, *more)

    def test_the_forgotten_count_among_those_who_have_spent_most(self, tmp_path):
        with Store.create(tmp_path / "s", PLAIN) as store:
            declared(store, "alice", "bob").add(X[:600], Y[:600], NAMES)
            store.predict(X[600:660], "alice")
            worst = status(store)["one_analyst"]["spent"]
            store.forget([store.engine.ledger.owners()[int(store.spent().argmax())]])
            assert status(store)["one_analyst"]["spent"] == worst

    def test_who_is_exhausted_by_the_global_ledger_is_counted(self, tmp_path):
        tight = Settings(**{**PLAIN.stored(), "global_epsilon": 0.2})
        with Store.create(tmp_path / "s", tight) as store:
            store.add(np.ones((60, 8)), np.arange(60) % 3, [f"p{i}" for i in range(60)])
            assert status(store)["exhausted"] == 0
            for i in range(40):
                declared(store, f"analyst-{i}").predict(np.ones((1, 8)) + 0.01 * i, f"analyst-{i}")
            facts = status(store)
            assert facts["exhausted"] == 60
            assert facts["spent_share_median"] > 0.9
            assert facts["one_analyst"]["spent"] <= tight.global_budget


ANSWERS = {None: 3, "ann": 2000, "bob": 1000, "cy": 0}


class TestAfterThousandsOfAnswers:
    """The default: the shared model answers, and nobody is charged for single answers."""

    @pytest.fixture
    def asked(self, tmp_path):
        """Ann has no key, Bob's key has a limit, and Cy's has none."""
        path, rng = tmp_path / "people.store", np.random.default_rng(1)
        with Store.create(path, replace(MODEL, sigma2=None, tau=None)) as made:
            made.add(X[:600], Y[:600], NAMES)
            for analyst, count in ANSWERS.items():
                if count:
                    declared(made, *([analyst] if analyst else []))
                    made.predict(rng.normal(size=(count, 8)), analyst)
            keyfile.create(keyfile.keys_path(path), "analyst", "bob", max_queries=2500)
            keyfile.create(keyfile.keys_path(path), "analyst", "cy")
            yield made

    def test_all_doors_give_the_same_figures(self, asked):
        python = status(asked)
        with application(asked, roles=["curator"]) as client:
            http, used = (
                client("GET", f"/v1/{path}", client.keys["curator"]).json() for path in ("status", "analysts")
            )
        asked.close()
        words, printed = command("status", asked.path), json.loads(command("status", asked.path, "--json"))
        names = python.keys() & http.keys()
        assert len(names) > 10
        assert {name: python[name] for name in names} == {name: printed[name] for name in names}
        assert {name: python[name] for name in names} == {name: http[name] for name in names}
        assert used["analysts"] == printed["by_analyst"]

        assert (python["answers"], python["analysts"]) == (3003, ["", "ann", "bob"])
        assert {one["name"]: one["answers"] for one in used["analysts"]} == ANSWERS
        left = {one["name"]: one["queries_left"] for one in used["analysts"]}
        assert left == {None: None, "ann": None, "bob": 1500, "cy": None}
        assert "analyst ann: 2,000 answers, no limit of queries" in words
        assert "analyst bob: 1,000 answers, 1,500 queries left" in words
        assert f"the median person has spent {python['spent_share_median']:.1%}" in words
        assert 0.0 < python["spent_share_median"] < 1.0
        forecast = python["forecast"]
        assert forecast["words"] == "no end in sight"
        assert f"queries left: {forecast['words']} ({forecast['why']})" in words

    @pytest.mark.parametrize("analyst", [None, "ann", "bob"])
    @pytest.mark.parametrize("purged", [False, True])
    def test_a_forecast_counts_what_was_answered(self, asked, analyst, purged):
        if purged:
            asked.purge()
        asked.close()
        more = [] if analyst is None else ["--analyst", analyst]
        assert command("forecast", asked.path, *more).startswith(f"{ANSWERS[analyst]:,} queries answered so far")


def test_a_forecast_is_for_whoever_has_asked(tmp_path):
    with Store.create(tmp_path / "s", PLAIN) as store:
        store.add(X[:600], Y[:600], NAMES)
        declared(store, "alice").predict(X[600:640], "alice")
    facts = json.loads(command("forecast", store.path, "--json"))
    assert (facts["analyst"], facts["answered"]) == ("alice", 40)
    with Store(store.path) as again:
        declared(again, "bob").predict(X[600:610], "bob")
    assert "with --analyst: alice, bob" in run("forecast", store.path, code=2).stderr


def test_the_forecast_of_all_is_about_the_average_person():
    """Few people were asked. The median person was not, but answers do cost something."""
    found = figures._forecast(100, [np.array([0.0, 0.0, 0.0, 0.4])])
    assert (found["queries_left_for_average_owner"], found["words"]) == (900, "about 900")
    assert figures._forecast(100, [np.ones(4)])["words"] == "none"
    assert figures._forecast(0, [np.zeros(4)])["words"] == "not known"


def test_hundreds_of_analysts_do_not_wrap_around():
    ledger, table = MemoryLedger(1 << 62), {name: np.full(2, 1 << 62) for name in (None, "a", "b", "c", "d")}
    assert by_observer(ledger, table)[TOGETHER].tolist() == [1 << 62] * 2
    told = account(PLAIN, TOGETHER, 1 << 62, rounded=True)
    assert told.epsilon_so_far is None  # beyond what can be computed, and still JSON
    json.dumps(told.__dict__, allow_nan=False)


def test_a_budget_that_was_lowered_is_not_told_away():
    told = account(PLAIN, ONE, to_units(2 * PLAIN.budget), rounded=True)
    assert 0 <= told.spent - 2 * PLAIN.budget <= 1.001 * PLAIN.budget / STEPS
    assert told.left == 0
    assert told.epsilon_so_far > PLAIN.epsilon


def test_promises():
    assert promise(PLAIN, ONE).epsilon == 1.0
    assert promise(PLAIN, TOGETHER).epsilon is None
    assert {promise(GLOBAL, who).epsilon for who in (ONE, TOGETHER)} == {8.0}
    assert "pool" in guarantee(PLAIN)["words"]
    assert "alone or all together" in guarantee(GLOBAL)["words"]


class TestRefits:
    """What was spent under earlier settings stays within what is printed."""

    def fitted(self, model, ask=True, **settings):
        model.set_params(**settings).fit(X[:600], Y[:600], owners=NAMES)
        if ask:
            model.predict(X[600:660])
        return model

    def test_a_smaller_epsilon_is_not_printed_after_a_larger_one_was_spent(self):
        model = self.fitted(
            IndKNNClassifier(8.0, tau=0.3, sigma2=0.05, max_queries=120, reuse="none", classes=[0, 1, 2])
        )
        self.fitted(model, epsilon=0.5)
        told, most = model.guarantee_, model.privacy_spent().max()
        assert told["budget"] >= most > model.budget_
        assert told["epsilon"] == pytest.approx(8.0)
        assert "epsilon = 8," in told["words"]
        who = model.owners_[int(model.privacy_spent().argmax())]
        statement = model.statement(who)
        assert statement["one_analyst"]["epsilon"] == told["epsilon"]
        assert statement["one_analyst"]["epsilon_so_far"] <= told["epsilon"]
        assert statement["one_analyst"]["left"] == 0.0
        assert statement["words"] == told["words"]
        self.fitted(model, epsilon=9.0)
        assert model.guarantee_["epsilon"] == 9.0

    def test_settings_under_which_nothing_was_spent_do_not_count(self):
        model = IndKNNClassifier(8.0, tau=0.3, sigma2=0.05, max_queries=120, reuse="none", classes=[0, 1, 2])
        self.fitted(model, ask=False)
        assert self.fitted(model, epsilon=0.5).guarantee_["epsilon"] == 0.5

    def test_with_and_without_a_global_ledger_there_is_no_bound(self):
        model = IndKNNClassifier(1.0, tau=0.3, sigma2=0.05, max_queries=120, reuse="none", classes=[0, 1, 2])
        self.fitted(self.fitted(model), global_epsilon=2.0)
        assert (model.guarantee_["epsilon"], model.guarantee_["budget"]) == (None, None)
        assert model.guarantee_["words"].startswith("No epsilon is promised")
        assert model.statement("p3")["together"]["epsilon"] is None

    def test_the_largest_global_ledger_bounds_all_together(self):
        model = IndKNNClassifier(
            1.0, tau=0.3, sigma2=0.05, max_queries=120, reuse="none", classes=[0, 1, 2], global_epsilon=4.0
        )
        self.fitted(self.fitted(model), global_epsilon=2.0)
        assert model.guarantee_["epsilon"] == pytest.approx(4.0)
        assert model.guarantee_["observer"] == TOGETHER


class TestTheEmptyName:
    """An analyst called "" would share a line of every report with the analyst without a name."""

    def refused(self, call, *arguments, **options):
        with pytest.raises(InvalidInputError, match="no analyst can be called ''|name must be 1 to"):
            call(*arguments, **options)

    def test_it_is_refused_at_every_door(self, tmp_path):
        engine = Engine(PLAIN, SecureNoise())
        engine.add(X[:600], Y[:600], NAMES)
        model = IndKNNClassifier(tau=0.3, classes=[0, 1, 2]).fit(X[:600], Y[:600], owners=NAMES)
        with Store.create(tmp_path / "s", PLAIN) as store:
            store.add(X[:600], Y[:600], NAMES)
            for door in (engine, model, store):
                self.refused(door.predict, X[600:602], "")
            for door in (engine.predict_both, model.predict_proba, store.predict_proba):
                self.refused(door, X[600:602], "")
            for door in (engine.spent, model.privacy_spent, store.spent):
                self.refused(door, ["p3"], analyst="")
            self.refused(store.limit_analyst, "", 0.5)
            self.refused(stream, store, "")
            assert not store.engine.ledger.anything_spent()
            assert "" not in store.engine.ledger.scopes
        self.refused(replace, PLAIN, analysts={"": 0.5})
        self.refused(keyfile.create, tmp_path / "keys", "analyst", "")
        np.savez(tmp_path / "q.npz", X=X[600:602])
        for words in (
            ["predict", tmp_path / "s", tmp_path / "q.npz", "-o", tmp_path / "a.npz"],
            ["forecast", tmp_path / "s"],
        ):
            result = run(*map(str, words), "--analyst", "")
            assert result.exit_code == 2, result.output
            assert "no analyst can be called ''" in result.output


def test_nobody_else_computes_an_epsilon():
    """Estimator, command line, server and store take it from `figures.py`."""
    source = Path(indknn.__file__).parent
    rest = [source / "estimator.py", *(p for name in ("cli", "server", "store") for p in (source / name).rglob("*.py"))]
    assert len(rest) > 40
    assert not [path for path in rest if re.search(r"accounting\.epsilon\(|import.*\bepsilon\b", path.read_text())]

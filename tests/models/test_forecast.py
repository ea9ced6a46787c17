"""The forecast is made of public things, and its figures mean what they say."""

import json
import shutil

import numpy as np
import pytest

from conftest import blobs
from helpers.commands import run
from indknn.cli import inspection
from indknn.core import clock
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED
from indknn.models.forecast import Nearness, Stream, Times, forecast, price_of_question
from indknn.settings import Settings
from indknn.store import Store, chain
from indknn.store.reports import stream

X, Y = blobs(4000, 3, 8, seed=5, spread=1.6)


def make(path, **settings):
    noise = {"sigma2": 1.2} if settings["mode"] == "votes" else {}
    settings = {"n_features": 8, "classes": (0, 1, 2), "epsilon": 2.0, "max_queries": 1000, **noise} | settings
    with Store.create(path, Settings(**settings)) as store:
        store.add(X[:3000], Y[:3000], "each-row")
        store.predict(X[3000:3400])
    return path


MODEL = {"mode": "model", "reuse": "none", "max_queries": None}
MODEL |= {"epsilon": 8.0, "model_share": 0.2, "sigma2": 0.3}  # such that people are asked
MODES = {"model": MODEL, "labels": {"mode": "votes", "reuse": "labels"}, "none": {"mode": "votes", "reuse": "none"}}


@pytest.fixture(scope="module", params=MODES)
def store(request, tmp_path_factory):
    return make(tmp_path_factory.mktemp("s") / f"{request.param}.store", **MODES[request.param])


def cli(*words):
    return run("forecast", *words, code=0).output


def overwrite_balances(path, units):
    """Another history of the same transcript: everybody has spent this."""
    with Store(path) as opened:
        db = opened.db
        for scope, block, body in list(db.execute("SELECT scope, block, spent FROM balances")):
            fake = np.full(len(body) // 8, units, dtype="<i8").tobytes()
            db.execute("UPDATE balances SET spent = ? WHERE scope = ? AND block = ?", (fake, scope, block))
        db.execute("DELETE FROM debits")
        chain.append(db, "fold")


def test_it_does_not_depend_on_anybodys_budget(store, tmp_path):
    found = []
    for name, units in (("rich", 0), ("poor", 1 << 40)):
        twin = tmp_path / name
        shutil.copy(store, twin)
        overwrite_balances(twin, units)
        with Store(twin) as opened:
            paid = SHARED if opened.settings.advised else None
            assert set(opened.engine.ledger.spent(opened.engine.ledger.owners(), paid).tolist()) == {units}
        found.append((cli(twin, "--json", "--n", 3000), cli(twin, "--rate", "100/day")))
    assert found[0] == found[1]


def test_it_does_not_depend_on_the_records(store, tmp_path):
    twin = tmp_path / "twin"
    shutil.copy(store, twin)
    before = cli(twin, "--json")
    with Store(twin) as opened:
        opened.forget(list(opened.engine.ledger.owners())[:1500])
    assert cli(twin, "--json") == before


def test_the_estimate_is_near_what_people_spent_on_average(store):
    with Store(store) as opened:
        told = stream(opened, records=3000)
        ledger = opened.engine.ledger  # of the analyst's own, which pays for votes
        really = 1.0 - float(ledger.spent(ledger.owners(), None).mean()) / ledger.limit(None)
        assert abs(told.left - really) < 0.1
        assert told.answered == 400


def test_more_queries_leave_less(store, tmp_path):
    twin = tmp_path / "twin"
    shutil.copy(store, twin)
    before = json.loads(cli(twin, "--json", "--n", 3000))
    with Store(twin) as opened:
        opened.predict(X[3400:])
    after = json.loads(cli(twin, "--json", "--n", 3000))
    assert after["answered"] == before["answered"] + 600
    assert after["left"] < before["left"]


def test_a_model_tells_what_remains_for_ever(tmp_path):
    path = make(tmp_path / "s.store", **MODEL)
    facts = json.loads(cli(path, "--json"))
    with Store(path) as opened:
        card = opened.engine.predictor.model.card
        scores = opened.engine.predictor.adviser().advise(opened.settings.quantise(X[3400:], "q")).scores
    assert facts["ends"] is False
    assert abs(facts["accuracy_alone"] - card.overall) < 0.1
    assert abs(facts["accuracy_alone"] - (scores.argmax(axis=1) == Y[3400:]).mean()) < 0.1
    assert "It stays like that as long as the data do" in cli(path)


def test_what_nothing_public_tells_is_unknown(tmp_path):
    path = make(tmp_path / "s.store", mode="votes", reuse="none")
    facts = json.loads(cli(path, "--json"))
    assert facts["left"] is None
    assert facts["until_half"] is None
    assert facts["planned_left"] == 600
    assert facts["accuracy_alone"] is None
    text = cli(path)
    assert "left: unknown" in text
    assert "Accuracy: unknown" in text
    assert json.loads(cli(path, "--json", "--n", 3000))["until_used_up"] > 0


def test_analysts_have_streams_of_their_own(store):
    unknown = run("forecast", store, "--analyst", "bob", code=2).stderr
    assert "there is no analyst 'bob'" in unknown  # as with indknn predict
    run("analysts", "add", store, "bob", code=0)
    assert json.loads(cli(store, "--json", "--analyst", "bob"))["answered"] == 0


def test_a_new_store_has_everything_left(tmp_path):
    path = tmp_path / "s.store"
    Store.create(path, Settings(n_features=1, classes=(), max_queries=1000, reuse="none"), draft=True).close()
    facts = json.loads(cli(path, "--json"))
    assert (facts["left"], facts["answered"], facts["until_half"]) == (1.0, 0, None)


def test_where_nobody_was_asked_no_end_is_in_sight():
    """It said "unknown before the first answers" after 3,000 of them, and `indknn status` something else."""
    stream = Stream(3000, 0, 0.0, 1.0, 0.001, alone=True)
    told = " ".join(inspection.words(forecast(stream), "the ledger", None, None))
    assert "No end is in sight: nobody was asked for the latest answers" in told
    assert "unknown before the first answers" not in told


def test_arithmetic():
    found = forecast(Stream(1000, 400, 0.4, 0.5, 0.001, 1500))
    assert (found.until_half, found.until_used_up, found.planned_left) == (625, 1250, 500)
    assert forecast(Stream(10, 0, 0.0, 0.5, 0.001)).until_half is None  # nobody is asked any more
    crowd = Nearness(0.1, 0.25)
    one = price_of_question(crowd, budget=0.5, sigma2=0.5, records=1000)
    assert one == pytest.approx(0.001)
    assert price_of_question(crowd, budget=0.5, sigma2=0.5, records=1000, sigma1=10.0) == pytest.approx(0.002)


def test_bad_values_are_named(store):
    for words, complaint in (
        (["--rate", "soon"], "--rate must be like 1000/day"),
        (["--n", "0"], "the number of records must be at least 1, got 0"),
    ):
        result = run("forecast", str(store), *words)
        assert result.exit_code == 2, result.output
        assert complaint in result.output
    with Store(store) as opened, pytest.raises(InvalidInputError):
        stream(opened, records=-1)


def test_rates_become_durations(store):
    text = cli(store, "--rate", "10/day", "--n", 3000)
    assert "months)" in text or "days)" in text or "years)" in text


class TestTime:
    """The clock is public, and so is how budgets and records depend on it."""

    PACED = Times(pace=100.0, elapsed=10.0)

    def stream(self, times, left=0.95, price=0.001):
        return Stream(100, 100, 1.0, left, price, alone=True, times=times)

    def test_a_pace_gives_a_part_by_now_and_so_many_queries_a_day(self):
        found = forecast(self.stream(self.PACED))
        assert found.left_by_now == pytest.approx(0.05)
        assert (found.until_pace, found.queries_a_day, found.until_used_up) == (50, 10, 950)
        assert forecast(self.stream(Times())).left_by_now == 0.95
        assert forecast(self.stream(Times(pace=100.0, elapsed=100.0))).until_pace is None  # all of it is there

    def test_votes_are_never_faster_than_their_pace(self):
        assert forecast(self.stream(self.PACED), daily=500.0).days_until_used_up == 90.0
        assert forecast(self.stream(self.PACED), daily=500.0).days_until_half == pytest.approx(42.5)
        slow = forecast(self.stream(self.PACED), daily=2.0)
        assert (slow.days_until_half, slow.days_until_used_up) == pytest.approx((237.5, 475.0))

    def test_what_ends_after_the_period_never_ends(self):
        times = Times(renew=365.0, elapsed=265.0, begun=3)
        found = forecast(self.stream(times), daily=5.0)
        assert (found.days_until_half, found.days_until_used_up) == (pytest.approx(95.0), None)
        assert (found.period, found.days_until_renewal) == (3, 100.0)
        told = " ".join(inspection.words(found, "the ledger", None, 5.0))
        assert "950 (3.3 months, the period)" in told
        assert "about period 3. The next begins in 3.3 months" in told

    @pytest.mark.parametrize("mode", MODES)
    def test_the_command_knows_pace_periods_and_retention(self, tmp_path, monkeypatch, mode):
        now = [20_000 * 86_400.0]
        monkeypatch.setattr(clock, "seconds", lambda: now[0])
        over_time = {"pace_days": 50, "renew_days": 100, "i_understand": "epsilon per period", "keep_days": 400}
        path = make(tmp_path / "s.store", **{**MODES[mode], **over_time})
        now[0] += 5 * 86_400.0
        facts = json.loads(cli(path, "--json", "--n", 3000, "--rate", "10/day"))
        assert facts["left_by_now"] == pytest.approx(max(facts["left"] - 0.9, 0.0), abs=1e-9)
        assert (facts["period"], facts["days_until_renewal"], facts["keep_days"]) == (1, 95.0, 400)
        text = cli(path, "--n", 3000)
        for line in ("Votes are paced: about", "The next begins in 3.1 months", "takes part for 13 months at most"):
            assert line in text
        spent = 1.0 - facts["left"]
        now[0] += 95 * 86_400.0
        facts = json.loads(cli(path, "--json", "--n", 3000))
        assert (facts["period"], facts["left"], facts["left_by_now"]) == (2, 1.0, 0.0)  # and not 1 - spent
        assert mode == "model" or 0.0 < spent <= 0.1  # no more than the pace allowed
        assert facts["answered"] == 400

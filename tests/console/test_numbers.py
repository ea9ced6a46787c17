"""A store whose records say numbers: an answer is a short number with its interval, once there is a model."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from console.serving import House
from indknn.settings import Settings
from indknn.store import Store

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def stays(tmp_path_factory, browser):
    path, rng = tmp_path_factory.mktemp("stays") / "stays.store", np.random.default_rng(0)
    X = rng.normal(size=(800, 4))
    with Store.create(path, Settings(4, (), target="number", bounds=(0, 50), tau=0.3)) as store:
        store.add(X, 25 + 6 * X[:, 0], [f"p{i}" for i in range(800)])
        for _ in store.train():
            pass
    served = House(path, roles=["admin"]).start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def votes(tmp_path_factory, browser):
    path, rng = tmp_path_factory.mktemp("votes") / "votes.store", np.random.default_rng(0)
    settings = Settings(4, (), target="number", bounds=(0, 50), tau=0.3, mode="votes", max_queries=100)
    with Store.create(path, settings) as store:
        store.add(rng.normal(size=(100, 4)), rng.uniform(0, 50, 100), [f"p{i}" for i in range(100)])
    served = House(path, roles=["admin"]).start()
    yield served
    served.stop()


def asked(page, text):
    page.locator("#ask-text").fill(text)
    page.locator("#ask button[type=submit]").click()
    # Words about progress come before the answer, so what shows first is not yet it.
    expect(page.locator("#ask .result")).to_have_text(re.compile(": |were answered"))


def test_one_answer_has_its_interval(stays, visit):
    page = visit(stays.url).sign_in(stays.keys["admin"], "ask")
    asked(page, "0.1, 0.2, 0.3, 0.4")
    value = float(page.locator("#ask .result strong").inner_text())
    words = page.locator("#ask .details").inner_text()
    low, high = (float(word.rstrip(".")) for word in words.removeprefix("90% of such numbers are from ").split(" to "))
    assert 0 <= low <= value <= high <= 50
    assert len(str(value)) <= 6  # as people read it


def test_many_answers_have_a_column_for_each_end(stays, visit):
    page = visit(stays.url).sign_in(stays.keys["admin"], "ask")
    asked(page, "0.1, 0.2, 0.3, 0.4\n0.4, 0.3, 0.2, 0.1")
    expect(page.locator("#ask .details th")).to_have_text(["row", "label", "low", "high"])


def test_without_a_model_the_number_comes_alone(votes, visit):
    page = visit(votes.url).sign_in(votes.keys["admin"], "ask")
    asked(page, "0.1, 0.2, 0.3, 0.4")
    assert 0 <= float(page.locator("#ask .result strong").inner_text()) <= 50
    expect(page.locator("#ask .details")).to_have_text("")

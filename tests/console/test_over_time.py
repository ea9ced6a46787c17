"""Legal holds, periods and pace: who is held, what this period is, and when the next begins."""

import time

import numpy as np
import pytest
from playwright.sync_api import expect

from console.serving import House
from indknn.core import clock
from indknn.settings import Settings
from indknn.store import Store

pytestmark = [pytest.mark.chromium, pytest.mark.slow]
DAY = 86_400.0
WIDTHS = [1280, 360]


@pytest.fixture(scope="module")
def yearly(tmp_path_factory, browser):
    """A store that was made 150 days ago, with periods of 100 days and a pace of 80. Its second period is half over."""
    path, rng = tmp_path_factory.mktemp("yearly") / "yearly.store", np.random.default_rng(0)
    X, y = rng.normal(size=(300, 4)), rng.integers(2, size=300)
    over_time = {"pace_days": 80, "renew_days": 100, "i_understand": "epsilon per period"}
    settings = Settings(4, (0, 1), tau=0.3, sigma2=0.3, mode="votes", max_queries=100, **over_time)
    begun = time.time() - 150 * DAY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "seconds", lambda: begun)
        with Store.create(path, settings) as store:
            store.add(X, y, [f"p{i}" for i in range(300)])
            patch.setattr(clock, "seconds", lambda: begun + 40 * DAY)
            store.predict(X[:20])
    served = House(path, roles=["admin", "analyst", "auditor", "curator"]).start()
    yield served
    served.stop()


def fits(page):
    """Nothing is wider than the screen."""
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", WIDTHS)
def test_everybody_sees_which_period_it_is_and_when_the_next_begins(yearly, visit, width):
    page = visit(yearly.url, width=width).sign_in(yearly.keys["analyst"])
    told = yearly.ask("v1/session", role="analyst")
    begins = told["time"]["next_begins"].replace("T", " ").removesuffix("Z")
    over_all = told["guarantee"]["periods"]["epsilon_over_all"]
    body = page.locator("#guarantee-body")
    expect(body).to_contain_text("Period 2")
    expect(body).to_contain_text(f"ε = 1 in this one, {float(f'{over_all:.4g}'):g} over all 2 periods so far.")
    expect(body).to_contain_text(f"The next begins at {begins} UTC.")
    expect(body).to_contain_text("Votes may have used 62.5% of their part by now. It grows evenly over 80 days.")
    fits(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_overview_has_this_period_and_all_so_far(yearly, visit, width):
    page = visit(yearly.url, width=width).sign_in(yearly.keys["auditor"])
    facts = yearly.ask("v1/status", role="auditor")
    assert facts["over_all_periods"]["one_analyst"]["epsilon_so_far"] > facts["one_analyst"]["epsilon_so_far"]
    numbers = page.locator("#numbers > div")
    now, over = (numbers.filter(has_text=words) for words in ("Largest ε, this period", "Largest ε, all 2 periods"))
    expect(over.locator("strong")).to_have_text(f"{facts['over_all_periods']['one_analyst']['epsilon_so_far']:.4g}")
    expect(now.locator("strong")).to_have_text(f"{facts['one_analyst']['epsilon_so_far']:.4g}")
    expect(now).to_contain_text("the next begins at 2")
    fits(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_curator_places_a_hold_and_ends_it(yearly, visit, width):
    opened = visit(yearly.url, width=width)
    opened.statuses = {404}
    page = opened.sign_in(yearly.keys["curator"], "people")
    name = f"p{width}"[:3]
    expect(page.locator("#holds-none")).to_have_text("Nobody is under a hold.")
    page.locator("#hold-name").fill("nobody")
    page.get_by_role("button", name="Hold", exact=True).click()
    expect(page.locator("#holds-error")).to_contain_text("nobody")
    page.locator("#hold-name").fill(name)
    page.get_by_role("button", name="Hold", exact=True).click()
    expect(page.locator("#holds-rows li")).to_have_count(1)
    expect(page.locator("#holds-result")).to_contain_text(f"{name} is under a hold")
    expect(page.locator("#holds-error")).to_be_hidden()
    assert yearly.ask("v1/holds", role="curator") == {"owners": [name]}
    yearly.ask(f"v1/owners/{name}", "DELETE", role="curator")  # it counts when the hold ends
    fits(page)
    page.get_by_role("button", name=f"End the hold on {name}").click()
    page.get_by_role("button", name=f"Really end the hold on {name}").click()
    expect(page.locator("#holds-result")).to_contain_text(f"The hold on {name} has ended. Erased 1 record")
    expect(page.locator("#holds-none")).to_have_text("Nobody is under a hold.")
    assert yearly.ask("v1/holds", role="curator") == {"owners": []}


@pytest.mark.parametrize("role", ["analyst", "auditor"])
def test_nobody_else_sees_holds(yearly, visit, role):
    opened, asked = visit(yearly.url), []
    opened.page.on("request", lambda request: asked.append(request.url))
    page = opened.sign_in(yearly.keys[role], "people")
    expect(page.locator("#guarantee")).to_be_visible()
    expect(page.locator("#holds")).to_be_hidden()
    assert not [url for url in asked if "/v1/holds" in url]

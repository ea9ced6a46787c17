"""Names and labels come from strangers, and keys are secrets."""

import re

import pytest
from playwright.sync_api import expect

from console.serving import House, make_store
from indknn.settings import Settings
from indknn.store import Store
from indknn.tables import Category, Number, Schema
from indknn.tables.schema import to_plain

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "<script>alert(2)</script>"
QUOTES = "\"'><svg onload=alert(3)>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, browser):
    path = tmp_path_factory.mktemp("hostile") / "people.store"
    make_store(path, labels=[SCRIPT, QUOTES], owners=[IMAGE])
    served = House(path, roles=["admin"])
    served.keys["odd"] = served.key("admin", "<b>Eve</b>")
    served.start()
    yield served
    served.stop()


def test_hostile_names_are_only_text(hostile, visit):
    opened = visit(hostile.url)
    page = opened.sign_in(hostile.keys["odd"], "ask")
    expect(page.locator("#who")).to_have_text("<b>Eve</b>, admin")
    page.locator("#ask-text").fill("1 0 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask .result")).to_contain_text("<s")  # both labels have it
    opened.go("records")
    cell = QUOTES.replace('"', '""')
    page.locator("#records-text").fill(f'a,b,c,d,y,owner\n1,0,0,0,"{cell}","{IMAGE}2"')
    expect(page.locator("#records-preview")).to_contain_text(QUOTES)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#records-result")).to_contain_text("Added 1 record.")

    opened.go("people")
    page.get_by_label("Name of the owner").fill(IMAGE)
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#statement")).to_contain_text(IMAGE)
    page.get_by_label("type the name again").fill(IMAGE)
    with page.expect_download():
        page.get_by_role("button", name="Forget", exact=True).click()
    expect(page.locator("#receipt-title")).to_have_text(f"Receipt for {IMAGE}")
    opened.go("audit")
    expect(page.locator("#audit-rows tr").first).to_contain_text("Forgot 1 owner")
    assert page.locator("main img, main script, main svg[onload], header b").count() == 0


RIGHT_TO_LEFT = "\u202e\u2067<b>live</b>\u200f"
TEMPLATE = "{{7*7}}${alert(4)}<%= 7*7 %>#{7*7}"
NULL = "a\0b<img src=x onerror=alert(5)>"
LONG = "x" * 10_000
PROTOTYPE = "__proto__"
PEOPLE = (
    SCRIPT,
    QUOTES,
    RIGHT_TO_LEFT,
    TEMPLATE,
    NULL,
    LONG,
    PROTOTYPE,
    "javascript:alert(6)",
    "a/b?c#d&e=%2e%2e",
    "-1",
)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory, browser):
    path = tmp_path_factory.mktemp("crowded") / "people.store"
    make_store(path, labels=[TEMPLATE + LONG, RIGHT_TO_LEFT, PROTOTYPE + NULL, SCRIPT], owners=PEOPLE, answers=3)
    served = House(path, roles=["admin"])
    for name in (TEMPLATE, SCRIPT, "'\"><svg onload=alert(7)>", "constructor", "w" * 128):
        served.key("analyst", name)
    served.start()
    yield served
    served.stop()


def fits(page):
    """Nothing is wider than the page, and nothing that a name said became a part of it."""
    sizes = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
    assert len(set(sizes)) == 1
    outside = page.evaluate(
        """[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && !e.closest('.scroll, pre, .unseen')
           && e.getBoundingClientRect().right > innerWidth + .5).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    assert page.locator("main img, main script, main svg[onload], main b, header b").count() == 0


@pytest.mark.parametrize("width", [360, 1280])
def test_names_of_every_odd_kind_are_shown_as_they_are(crowded, visit, width):
    opened = visit(crowded.url, width=width)
    page = opened.sign_in(crowded.keys["admin"])
    for summary in page.locator("summary").all():
        summary.click()
    fits(page)
    opened.go("analysts")
    for name in (TEMPLATE, SCRIPT):
        expect(page.locator("#keys-rows")).to_contain_text(name)
    fits(page)
    opened.go("people")
    for person in PEOPLE:
        page.get_by_label("Name of the owner").fill(person)
        page.get_by_role("button", name="Look up").click()
        expect(page.locator("#forget-form")).to_be_visible()
        expect(page.locator("#owner-error")).to_be_hidden()
        assert person in page.locator("#statement").evaluate("node => node.textContent")
        fits(page)
    opened.go("ask")
    page.locator("#ask-text").fill("1 0 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask .result strong")).to_be_visible()
    fits(page)
    page.locator("#ask-text").fill("1 0 0 0\n0 1 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask .result")).to_have_text("2 queries were answered.")
    fits(page)
    opened.go("people")
    page.get_by_label("Name of the owner").fill("<")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#owner-list button").first).to_be_visible()
    fits(page)


def test_who_is_chosen_from_the_list_is_looked_up_even_if_a_field_cannot_hold_the_name(crowded, visit):
    """Only an older store has such names. The field drops the line break, and then it is somebody else's name."""
    opened = visit(crowded.url)
    page = opened.page
    asked = []
    page.route("**/v1/owners?search=*", lambda route: route.fulfill(json={"owners": ["pat\nient-1"], "more": False}))
    page.route(
        "**/v1/owners/**",
        lambda route: (
            asked.append(route.request.url),
            route.fulfill(status=404, json={"error": "no", "code": "unknown_owner"}),
        ),
    )
    opened.statuses = {404}
    opened.sign_in(crowded.keys["admin"], "people")
    page.get_by_label("Name of the owner").fill("pat")
    page.get_by_role("button", name="Search").click()
    page.locator("#owner-list button").click()
    expect(page.locator("#owner-error")).to_have_text("No.")
    assert [url.rpartition("/")[2] for url in asked] == ["pat%0Aient-1"]


def test_columns_with_hostile_names_are_only_text(tmp_path, serve, visit):
    columns = {SCRIPT: Number(bounds=(0, 1), knots=()), QUOTES: Category(values=(IMAGE, TEMPLATE))}
    schema = Schema(columns, classes=("a", "b"))
    settings = Settings.of(schema.n_features, schema.classes, tau=0.3, max_queries=100, schema=to_plain(schema))
    with Store.create(tmp_path / "t.store", settings) as store:
        rows = [{SCRIPT: i / 20, QUOTES: (IMAGE, TEMPLATE)[i % 2]} for i in range(20)]
        store.add(rows, ["a", "b"] * 10, [f"p{i}" for i in range(20)])
    house = serve(tmp_path / "t.store", roles=["admin"])
    opened = visit(house.url)
    opened.statuses = {422}
    page = opened.sign_in(house.keys["admin"], "ask")
    page.get_by_label(SCRIPT).fill("0.5")
    page.get_by_label(QUOTES).select_option(IMAGE)
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask .result strong")).to_have_text(re.compile("^(a|b)$"))
    fits(page)
    opened.go("records")
    page.locator("#records-text").fill(f'"{SCRIPT}","""\'><svg onload=alert(3)>",y,owner\n0.5,"{IMAGE}",a,zed')
    expect(page.locator("#records-preview, #records-error").filter(visible=True).first).to_be_visible()
    fits(page)


def test_an_unknown_hostile_owner_is_a_sentence(hostile, visit):
    opened = visit(hostile.url)
    opened.statuses = {404}
    page = opened.sign_in(hostile.keys["admin"], "people")
    page.get_by_label("Name of the owner").fill(IMAGE + "nobody")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#owner-error")).to_contain_text("nknown owner")
    assert page.locator("main img").count() == 0
    page.get_by_label("Name of the owner").fill("..")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#owner-error")).to_contain_text("cannot be asked for here")


def test_the_policy_is_strict_and_nothing_is_inline(hostile, visit):
    opened = visit(hostile.url)
    requests = []
    opened.page.on("request", lambda request: requests.append(request.url))
    response = opened.page.goto(hostile.url)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"<style|<[^>]*\s(?:style|on\w+)\s*=|javascript:|<script(?![^>]*\ssrc=)", response.text()) == []
    page = opened.sign_in(hostile.keys["admin"])
    assert page.locator("[style]").count() == 0
    assert all(url.startswith(hostile.url) for url in requests)


def test_the_key_stays_in_memory(hostile, visit):
    opened = visit(hostile.url)
    seen = []
    opened.page.on("request", lambda request: seen.append(request.url))
    key = hostile.keys["admin"]
    page = opened.sign_in(key)
    kept = page.evaluate(
        "[JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage}), document.cookie, location.href]"
    )
    assert kept == ["{}", "{}", "", hostile.url]
    assert not any(key in url for url in seen)
    assert key not in page.content()
    opened.go("records")
    page.locator("#records-text").fill("half a thought")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator("#key")).to_have_value("")
    expect(page.locator("#records-text")).to_have_value("")
    expect(page.locator("#panels")).to_be_hidden()

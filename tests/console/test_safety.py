"""Names and labels come from strangers, and keys are secrets."""

import re

import pytest
from playwright.sync_api import expect

from console.serving import House, make_store

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
    page = visit(hostile.url).sign_in(hostile.keys["odd"])
    expect(page.locator("#who")).to_have_text("<b>Eve</b>, admin")
    page.locator("#query-text").fill("1 0 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#query-result")).to_contain_text("<s")  # both labels have it
    cell = QUOTES.replace('"', '""')
    page.locator("#records-text").fill(f'a,b,c,d,y,owner\n1,0,0,0,"{cell}","{IMAGE}2"')
    expect(page.locator("#records-preview")).to_contain_text(QUOTES)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#records-result")).to_contain_text("Added 1 record.")

    page.get_by_label("Name of the owner").fill(IMAGE)
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#statement")).to_contain_text(IMAGE)
    page.get_by_label("type the name again").fill(IMAGE)
    with page.expect_download():
        page.get_by_role("button", name="Forget", exact=True).click()
    expect(page.locator("#receipt-title")).to_have_text(f"Receipt for {IMAGE}")
    expect(page.locator("#audit-rows tr").first).to_contain_text("Forgot 1 owner")
    assert page.locator("main img, main script, main svg[onload], header b").count() == 0


def test_an_unknown_hostile_owner_is_a_sentence(hostile, visit):
    opened = visit(hostile.url)
    opened.statuses = {404}
    page = opened.sign_in(hostile.keys["admin"])
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
    page.locator("#records-text").fill("half a thought")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator("#key")).to_have_value("")
    expect(page.locator("#records-text")).to_have_value("")
    expect(page.locator("#panels")).to_be_hidden()

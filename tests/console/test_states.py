"""Wrong keys, few rights, too many requests: each is a sentence on the page. A refresh disturbs nobody."""

import re

import pytest
from playwright.sync_api import expect

from indknn.store import keyfile as keys

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


def test_a_wrong_key(house, visit):
    opened = visit(house.url)
    page = opened.open()
    expect(page.get_by_label("API key")).to_be_focused()
    assert opened.complaints == []  # to find out that a key is needed, nothing is asked that would be refused
    opened.statuses = {401}
    for text, words in [
        ("", "Type or paste a key."),
        ("two words", "This cannot be a key: it has spaces or special characters in it."),
        ("indknn_wrong", "The server does not accept this key."),
    ]:
        page.get_by_label("API key").fill(text)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#sign-in-error")).to_have_text(words)
        expect(page.locator("#key")).to_be_focused()
    expect(page.locator("#panels")).to_be_hidden()


def test_an_analyst_sees_the_promise_and_a_query(house, visit):
    opened = visit(house.url)
    asked = []
    opened.page.on("request", lambda request: asked.append(request.url.removeprefix(house.url)))
    page = opened.sign_in(house.keys["analyst"])
    shown = "all => all.map(s => s.id)"
    assert page.locator("#panels > section:visible").evaluate_all(shown) == ["guarantee"]
    assert page.locator("nav a").all_inner_texts() == ["Overview", "Ask"]
    page.get_by_role("link", name="Ask").click()
    expect(page.locator("#ask-title")).to_be_focused()  # the address changes first, and the page follows it
    assert page.locator("#panels > section:visible").evaluate_all(shown) == ["ask", "ask-file"]
    assert not {path for path in asked if path.startswith("v1/")} - {"v1/session", "v1/sign-in"}
    page.locator("#ask-text").fill("0 1 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask .result strong")).to_have_text(re.compile("healthy|ill|unclear"))


def test_an_owner_sees_themselves_only(house, visit):
    opened = visit(house.url)
    opened.statuses = {403, 404}
    page = opened.sign_in(house.key("owner", "yan-herself", owner="yan"))
    assert page.locator("#panels > section:visible").evaluate_all("all => all.map(s => s.id)") == ["people"]
    assert page.locator("nav a").all_inner_texts() == ["Overview", "People"]
    expect(page.get_by_label("Name of the owner")).to_have_value("yan")
    expect(page.locator("#statement")).to_contain_text("yan")  # at once: nothing was clicked
    expect(page.locator("#statement")).to_contain_text("of the budget")
    page.get_by_label("Name of the owner").fill("patient-5")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#owner-error")).to_contain_text("This key does not allow that.")
    expect(page.locator("#forget-form")).to_be_hidden()


def test_too_many_requests(house, visit):
    opened = visit(house.url)
    opened.statuses = {429}
    page = opened.sign_in(house.key("analyst", "hasty", rate=0.002), "ask")
    ask = page.get_by_role("button", name="Ask, and spend")
    page.locator("#ask-text").fill("0 1 0 0")
    ask.click()
    expect(page.locator("#ask .result strong")).to_be_visible()
    page.locator("#ask-text").fill("0 1 1 0")
    ask.click()
    expect(page.locator("#ask-error")).to_have_text(re.compile(r"^Too many requests\. Try again in \d+ s\."))
    expect(page.locator("#ask-text")).to_have_value("0 1 1 0")


def test_a_revoked_key_keeps_what_was_typed(house, visit):
    opened = visit(house.url)
    opened.statuses = {401}
    page = opened.sign_in(house.key("curator", "leaving"), "records")
    page.locator("#records-text").fill("a,b,c,d,y,owner\n1,0,0,0,ill,ann")
    keys.revoke(keys.keys_path(house.path), "leaving")
    page.wait_for_timeout(1100)  # the server looks at its keys once a second
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#sign-in-error")).to_have_text("Your key is no longer accepted. Sign in again.")
    expect(page.locator("#panels")).to_be_hidden()
    page.get_by_label("API key").fill(house.keys["curator"])
    page.keyboard.press("Enter")
    expect(page.locator("#records-text")).to_have_value("a,b,c,d,y,owner\n1,0,0,0,ill,ann")


def test_a_refresh_disturbs_nobody(house, visit):
    opened = visit(house.url)
    opened.page.clock.install()
    page = opened.sign_in(house.keys["admin"])
    page.locator("#spent summary").click()
    opened.go("records")
    page.locator("#records-text").fill("half a thought")
    opened.go("people")
    page.locator("#owner-name").fill("patient-")
    page.keyboard.press("ArrowLeft")
    with page.expect_response("**/v1/session"):
        page.clock.run_for(10_500)
    expect(page.locator("#owner-name")).to_be_focused()
    page.keyboard.type("x")
    expect(page.locator("#owner-name")).to_have_value("patientx-")
    opened.go("records")
    expect(page.locator("#records-text")).to_have_value("half a thought")
    opened.go("overview")
    expect(page.locator("#spent table")).to_be_visible()
    page.get_by_role("link", name="Records").focus()
    body = {"records": [{"features": [0, 0, 0, 1], "label": "ill", "owner": "new"}]}
    records = house.ask("v1/records", "POST", body)["records"]
    page.clock.run_for(10_500)
    expect(page.locator("#numbers strong").first).to_have_text(str(records))
    expect(page.get_by_role("link", name="Records")).to_be_focused()

"""Wrong keys, little rights, a new store, a busy server, a dead one: each is a sentence on the page."""

import re

import pytest
from playwright.sync_api import expect

from console.serving import make_store
from indknn.engine import Settings
from indknn.server import keys
from indknn.store import Store

pytestmark = pytest.mark.chromium


def test_a_wrong_key(house, visit):
    page = visit(house.url).open()
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
    shown = page.locator("#panels > section:visible").evaluate_all("all => all.map(s => s.id)")
    assert shown == ["guarantee", "query"]
    assert page.locator("nav a").all_inner_texts() == ["Guarantee", "Query"]
    assert not {path for path in asked if path.startswith("v1/")} - {"v1/session"}
    page.locator("#query-text").fill("0 1 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#query-result strong")).to_have_text(re.compile("healthy|ill|unclear"))


def test_an_owner_sees_themselves_only(house, visit):
    opened = visit(house.url)
    opened.statuses = {403, 404}
    page = opened.sign_in(house.key("owner", "yan-herself", owner="yan"))
    assert page.locator("#panels > section:visible").evaluate_all("all => all.map(s => s.id)") == ["guarantee", "owner"]
    expect(page.get_by_label("Name of the owner")).to_have_value("yan")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#statement")).to_contain_text("yan")
    page.get_by_label("Name of the owner").fill("patient-5")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#owner-error")).to_contain_text("This key does not allow that.")
    expect(page.locator("#forget-form")).to_be_hidden()


def test_too_many_requests(house, visit):
    opened = visit(house.url)
    opened.statuses = {429}
    page = opened.sign_in(house.key("analyst", "hasty", rate=0.02))
    ask = page.get_by_role("button", name="Ask, and spend")
    page.locator("#query-text").fill("0 1 0 0")
    ask.click()
    expect(page.locator("#query-result strong")).to_be_visible()
    page.locator("#query-text").fill("0 1 1 0")
    ask.click()
    expect(page.locator("#query-error")).to_have_text(re.compile(r"^Too many requests\. Try again in \d+ s\."))
    expect(page.locator("#query-text")).to_have_value("0 1 1 0")


def test_a_revoked_key_keeps_what_was_typed(house, visit):
    page = visit(house.url).sign_in(house.key("curator", "leaving"))
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
    page.locator("#records-text").fill("half a thought")
    page.locator("#owner-name").fill("patient-")
    page.keyboard.press("ArrowLeft")
    body = {"records": [{"features": [0, 0, 0, 1], "label": "ill", "owner": "new"}]}
    records = house.ask("v1/records", "POST", body)["records"]
    page.clock.run_for(10_500)
    expect(page.locator("#numbers strong").first).to_have_text(str(records))
    expect(page.locator("#owner-name")).to_be_focused()
    page.keyboard.type("x")
    expect(page.locator("#owner-name")).to_have_value("patientx-")
    expect(page.locator("#records-text")).to_have_value("half a thought")
    expect(page.locator("#spent table")).to_be_visible()
    page.get_by_role("link", name="Records").focus()
    with page.expect_response("**/v1/audit?after*"):
        page.clock.run_for(10_500)
    expect(page.get_by_role("link", name="Records")).to_be_focused()


def test_a_new_store_without_keys(tmp_path, serve, visit):
    path = tmp_path / "new.store"
    Store.create(path, Settings(n_features=1, classes=(), tau=0.5), draft=True).close()
    served = serve(path, roles=[])
    page = visit(served.url).open()
    expect(page.locator("#who")).to_contain_text("no keys are set")
    expect(page.locator("#overview-empty")).to_contain_text("This store is new.")
    expect(page.locator("#answers .sentence")).to_have_text("No query was answered yet.")
    expect(page.locator("#spent .sentence")).to_have_text("There are no owners yet.")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
    page.locator("#query-text").fill("1")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#query-error")).to_have_text("The store has never held records. Add some first.")
    page.locator("#records-text").fill("a,b,y,owner\n1,0,7,ann\n0,1,8,bob")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#records-result")).to_contain_text("Added 2 records.")
    expect(page.locator("#overview-empty")).to_be_hidden()
    expect(page.locator("#query-hint")).to_have_text("2 numbers.")
    page.locator("#query-text").fill("1 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#query-result strong")).to_have_text(re.compile("7|8"))


def test_a_dead_server_is_told_and_comes_back(tmp_path, serve, visit):
    path = tmp_path / "people.store"
    make_store(path)
    served = serve(path, roles=["admin"])
    opened = visit(served.url)
    opened.statuses = {"net::ERR_CONNECTION_REFUSED", "net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE"}
    opened.page.clock.install()
    page = opened.sign_in(served.keys["admin"])
    served.stop(kill=True)
    page.locator("#query-text").fill("1 0 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#query-error")).to_contain_text("is not charged twice")
    page.clock.run_for(10_500)
    expect(page.locator("#banner")).to_have_text(
        re.compile(r"^The server cannot be reached\. What is shown is from \S+\. Trying again every 10 seconds\.$")
    )
    served.start()
    page.clock.run_for(10_500)
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#query-text")).to_have_value("1 0 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#query-result strong")).to_be_visible()
    assert served.ask("v1/status")["answers"] == 1


def test_a_lost_answer_is_not_guessed_at(house, visit):
    opened = visit(house.url)
    opened.statuses = {"net::ERR_FAILED"}
    page = opened.sign_in(house.keys["admin"])

    def lose(route):  # the server did it, and the browser never hears
        route.fetch()
        route.abort()

    for path in ("infer", "records", "owners/patient-9"):
        page.route(f"**/{path}", lose, times=1)
    before = house.ask("v1/status")

    ids = []
    page.on("request", lambda r: ids.append(r.post_data_json["id"]) if r.url.endswith("/infer") else None)
    page.locator("#query-text").fill("0.3 0.1 0.2 0.5")
    for words in ("#query-error", "#query-result strong"):
        page.get_by_role("button", name="Ask, and spend").click()
        expect(page.locator(words)).to_be_visible()
    assert len(ids) == 2
    assert len(set(ids)) == 1
    page.locator("#records-text").fill("a,b,c,d,y,owner\n1,0,0,0,ill,lost")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#records-error")).to_contain_text("It is not known whether the records were added.")
    expect(page.locator("#records-text")).to_have_value("a,b,c,d,y,owner\n1,0,0,0,ill,lost")
    after = house.ask("v1/status")
    assert (after["answers"], after["records"]) == (before["answers"] + 1, before["records"] + 1)

    look = page.get_by_role("button", name="Look up")
    page.get_by_label("Name of the owner").fill("patient-9")
    look.click()
    expect(page.locator("#owner-error")).to_have_text("The server cannot be reached.")
    look.click()
    page.get_by_label("type the name again").fill("patient-9")
    page.route("**/owners/patient-9", lose, times=1)
    page.get_by_role("button", name="Forget", exact=True).click()
    expect(page.locator("#forget-error")).to_contain_text("It is not known whether they were forgotten.")
    look.click()
    expect(page.locator("#statement")).to_contain_text("kept on the books")
    expect(page.locator("#forget-form")).to_be_hidden()

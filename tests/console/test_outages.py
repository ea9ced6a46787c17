"""A new store, a dead server, an answer that never came: the page says what it knows and what it does not."""

import re

import pytest
from playwright.sync_api import expect

from console.serving import make_store
from indknn.settings import Settings
from indknn.store import Store

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


def test_a_new_store_without_keys(tmp_path, serve, visit):
    path = tmp_path / "new.store"
    Store.create(path, Settings(n_features=1, classes=(), tau=0.5), draft=True).close()
    served = serve(path, roles=[])
    opened = visit(served.url)
    page = opened.open()
    expect(page.locator("#who")).to_contain_text("no keys are set")
    expect(page.locator("#overview-empty")).to_contain_text("This store is new.")
    expect(page.locator("#answers .sentence")).to_have_text("No query was answered yet.")
    expect(page.locator("#spent .sentence")).to_have_text("There are no owners yet.")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
    opened.go("ask")
    page.locator("#ask-text").fill("1")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask-error")).to_have_text("The store has never held records. Add some first.")
    opened.go("records")
    page.locator("#records-text").fill("a,b,y,owner\n1,0,7,ann\n0,1,8,bob")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#records-result")).to_contain_text("Added 2 records.")
    opened.go("overview")
    expect(page.locator("#overview-empty")).to_be_hidden()
    opened.go("ask")
    expect(page.locator("#ask-hint")).to_have_text("2 numbers. More lines are more queries.")
    page.locator("#ask-text").fill("1 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask .result strong")).to_have_text(re.compile("7|8"))


def test_a_dead_server_is_told_and_comes_back(tmp_path, serve, visit):
    path = tmp_path / "people.store"
    make_store(path)
    served = serve(path, roles=["admin"])
    opened = visit(served.url)
    opened.statuses = {"net::ERR_CONNECTION_REFUSED", "net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE"}
    opened.page.clock.install()
    page = opened.sign_in(served.keys["admin"], "ask")
    served.stop(kill=True)
    page.locator("#ask-text").fill("1 0 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask-error")).to_contain_text("is not charged twice")
    page.clock.run_for(10_500)
    expect(page.locator("#banner")).to_have_text(
        re.compile(r"^The server cannot be reached\. What is shown is from \S+\. Trying again every 10 seconds\.$")
    )
    served.start()
    page.clock.run_for(10_500)
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#ask-text")).to_have_value("1 0 0 0")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask .result strong")).to_be_visible()
    assert served.ask("v1/status")["answers"] == 1


def test_a_lost_answer_is_not_guessed_at(house, visit):
    opened = visit(house.url)
    opened.statuses = {"net::ERR_FAILED"}
    page = opened.sign_in(house.keys["admin"], "ask")

    def lose(route):  # the server did it, and the browser never hears
        route.fetch()
        route.abort()

    for path in ("infer", "records", "owners/patient-9"):
        page.route(f"**/{path}", lose, times=1)
    before = house.ask("v1/status")

    ids = []
    page.on("request", lambda r: ids.append(r.post_data_json["id"]) if r.url.endswith("/infer") else None)
    page.locator("#ask-text").fill("0.3 0.1 0.2 0.5")
    for words in ("#ask-error", "#ask .result strong"):
        page.get_by_role("button", name="Ask, and spend").click()
        expect(page.locator(words)).to_be_visible()
    assert len(ids) == 2
    assert len(set(ids)) == 1
    opened.go("records")
    page.locator("#records-text").fill("a,b,c,d,y,owner\n1,0,0,0,ill,lost")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#records-error")).to_contain_text("It is not known whether the records were added.")
    expect(page.locator("#records-text")).to_have_value("a,b,c,d,y,owner\n1,0,0,0,ill,lost")
    page.get_by_role("button", name="Add", exact=True).click()  # the server knows the id, and adds nothing
    expect(page.locator("#records-result")).to_contain_text("Added 1 record.")
    after = house.ask("v1/status")
    assert (after["answers"], after["records"]) == (before["answers"] + 1, before["records"] + 1)

    opened.go("people")
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
    expect(page.locator("#statement")).to_contain_text("kept in the ledger")
    expect(page.locator("#forget-form")).to_be_hidden()

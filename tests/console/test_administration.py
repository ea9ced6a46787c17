"""Keys, analysts, owners by name, verify and the trail as a file, in a real browser."""

import json

import pytest
from playwright.sync_api import expect

from indknn import proof

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


def row(page, text):
    return page.locator("#keys-rows tr", has_text=text)


def test_a_key_is_made_shown_once_rotated_and_revoked(house, visit):
    opened = visit(house.url)
    page = opened.sign_in(house.keys["admin"], "analysts")
    page.get_by_label("Name of the holder").fill("newcomer")
    page.get_by_label("Queries in all").fill("x")
    page.get_by_role("button", name="Make a key").click()
    expect(page.locator("#keys-error")).to_have_text("Queries in all must be a number, or empty.")
    page.get_by_label("Queries in all").fill("250")
    page.get_by_role("button", name="Make a key").click()
    expect(page.locator("#keys-words")).to_contain_text("newcomer, analyst. It is shown only once")
    first = page.locator("#keys-text").inner_text()
    expect(row(page, "newcomer")).to_contain_text("250 in all")
    expect(page.locator("#analysts-rows tr", has_text="newcomer")).to_contain_text("250")
    house.keys["newcomer"] = first
    assert house.ask("v1/session", role="newcomer")["name"] == "newcomer"

    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#keys-text")).to_have_text(first)  # it stays until it is hidden
    page.get_by_role("button", name="I have copied it").click()
    expect(page.locator("#keys-new")).to_be_hidden()
    assert first not in page.content()

    rotate = row(page, "newcomer").get_by_role("button", name="Rotate")
    rotate.click()
    expect(page.locator("#keys-new")).to_be_hidden()  # the first press only asks
    row(page, "newcomer").get_by_role("button", name="Really rotate").click()
    expect(page.locator("#keys-text")).to_contain_text("indknn_")
    house.keys["newcomer"] = page.locator("#keys-text").inner_text()
    assert house.keys["newcomer"] != first
    assert house.ask("v1/session", role="newcomer")["name"] == "newcomer"
    expect(row(page, "newcomer")).to_have_count(2)

    row(page, "newcomer").get_by_role("button", name="Revoke").click()
    row(page, "newcomer").get_by_role("button", name="Really revoke").click()
    expect(row(page, "newcomer").get_by_role("button")).to_have_count(0)
    del house.keys["newcomer"]


def test_a_key_of_an_owner_wants_the_owner(house, visit):
    opened = visit(house.url)
    opened.statuses = {422}
    page = opened.sign_in(house.keys["admin"], "analysts")
    expect(page.get_by_label("Owner that the key is for")).to_be_hidden()
    page.get_by_label("Role").select_option("owner")
    page.get_by_label("Name of the holder").fill("patient-9 herself")
    page.get_by_role("button", name="Make a key").click()
    expect(page.locator("#keys-error")).to_contain_text("owner")
    page.get_by_label("Owner that the key is for").fill("patient-9")
    page.get_by_role("button", name="Make a key").click()
    expect(row(page, "patient-9 herself")).to_contain_text("owner patient-9")


def test_an_auditor_sees_who_asks_and_no_keys(house, visit):
    page = visit(house.url).sign_in(house.keys["auditor"], "analysts")
    expect(page.get_by_role("link", name="Analysts", exact=True)).to_be_visible()
    expect(page.locator("#keys")).to_be_hidden()
    told = {one["name"]: one["answers"] for one in house.ask("v1/analysts")["analysts"]}
    assert told["ann"] == 12
    expect(page.locator("#analysts-rows tr", has_text="ann").first).to_contain_text("12")


def test_an_owner_is_found_by_a_part_of_the_name(house, visit):
    page = visit(house.url).sign_in(house.keys["curator"], "people")
    page.get_by_label("Name of the owner").fill("WARD")
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator("#owner-list").get_by_role("button", name="ward/7 ü").click()
    expect(page.locator("#statement")).to_contain_text("ward/7 ü")
    page.get_by_label("Name of the owner").fill("nobody at all")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#owner-found")).to_have_text("No owner has this text in their name.")


def test_the_store_is_verified_and_the_trail_is_a_file(house, visit):
    page = visit(house.url).sign_in(house.keys["auditor"], "audit")
    page.get_by_role("button", name="Verify the store").click()
    expect(page.locator("#audit-result")).to_contain_text("No problems found")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the trail").click()
    *entries, _ = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert entries == house.ask("v1/audit?limit=1000")["entries"][: len(entries)]
    assert len(entries) > 10
    keys = proof.read_keys(json.dumps(house.ask("v1/signing-key")))
    with download.value.path().open() as lines:  # whoever has the file and the public key can check it
        assert proof.check(lines, keys).problem is None

"""What curators and officers come for, done in a real browser against a real server."""

import json
import re

import pytest
from playwright.sync_api import expect

from indknn import proof

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

CSV = """a,b,c,d,label,owner
0.9,0.1,0,0,healthy,"Doe, Jo"
0.8,0.2,0,0,healthy,"Doe, Jo"
0,0.9,0.1,0,ill,kim
"""


def number(page, name):
    return page.locator("#numbers > div", has=page.get_by_text(name, exact=True)).locator("strong")


def test_the_guarantee_is_in_words(house, visit):
    page = visit(house.url).sign_in(house.keys["curator"])
    body = page.locator("#guarantee")
    for words in (
        "ε = 1",
        "δ = 1e-5",
        "1 in 100,000",
        "gdp",
        "almost the same",
        "at most 55.4% of the time",
        "pool their answers",
    ):
        expect(body).to_contain_text(words)
    expect(page.locator("#who")).to_have_text("curator-1, curator")


def test_numbers_and_charts(house, visit):
    page = visit(house.url).sign_in(house.keys["auditor"])
    facts = house.ask("v1/status")
    expect(number(page, "Records")).to_have_text(str(facts["records"]))
    expect(number(page, "Exhausted owners")).to_have_text(str(facts["exhausted"]))
    expect(number(page, "Queries left, forecast")).to_have_text(facts["forecast"]["words"])
    heights = page.locator("#spent rect").evaluate_all("bars => bars.map(bar => bar.height.baseVal.value)")
    histogram = facts["spent_share_histogram"]
    assert [h > 0 for h in heights] == [n > 0 for n in histogram]
    expect(page.locator("#answers path.line")).to_have_count(1)
    page.locator("#spent summary").click()
    rows = page.locator("#spent tbody tr td:nth-child(2)").all_inner_texts()
    assert [int(text.replace(",", "")) for text in rows] == histogram
    expect(page.get_by_role("link", name="Records")).to_be_hidden()  # an auditor looks


def test_records_from_csv(house, visit, tmp_path):
    opened = visit(house.url)
    page = opened.sign_in(house.keys["curator"], "records")
    before = house.ask("v1/status")["records"]
    add = page.get_by_role("button", name="Add", exact=True)
    expect(add).to_be_disabled()

    page.locator("#records-text").fill(CSV.replace("0.9,0.1,0,0", "0.9,x,0,0"))
    expect(page.locator("#records-error")).to_have_text('"x" in row 0, column b is not a number.')
    file = tmp_path / "three.csv"
    file.write_text(CSV.replace(",d,", ",").replace(",0,healthy", ",healthy").replace(",0,ill", ",ill"))
    page.get_by_label("A CSV or JSON file").set_input_files(file)
    expect(page.locator("#records-preview")).to_have_text(
        "Ready: 3 records of 2 owners; 3 features; labels healthy, ill."
    )

    opened.statuses = {400, 422}
    add.click()  # the server refuses three features
    expect(page.locator("#records-error")).to_contain_text("features")
    expect(page.locator("#records-text")).not_to_have_value("")
    page.locator("#records-text").fill(CSV)
    add.click()
    expect(page.locator("#records-result")).to_contain_text("Added 3 records.")
    expect(page.locator("#records-text")).to_have_value("")
    assert house.ask("v1/owners/Doe%2C%20Jo")["records"] == 2
    opened.go("overview")
    expect(number(page, "Records")).to_have_text(str(before + 3))
    opened.go("audit")
    expect(page.locator("#audit-rows tr").first).to_contain_text("Added 3 records.")


def test_a_query_gets_a_label_with_probabilities(house, visit):
    opened = visit(house.url)
    page = opened.sign_in(house.keys["admin"], "ask")
    expect(page.locator("#ask-cost")).to_contain_text("may spend budget")
    page.locator("#ask-text").fill("1, 2")
    page.get_by_role("button", name="Ask, and spend").click()
    expect(page.locator("#ask-error")).to_have_text("A query must have 4 numbers, got 2.")
    before = house.ask("v1/status")["answers"]
    page.locator("#ask-text").fill("1, 0 0;0")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#ask .result strong")).to_have_text(re.compile("healthy|ill|unclear"))
    shares = [float(text.rstrip("%")) for text in page.locator("#ask .shares li span:last-child").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.2)
    widths = page.locator("#ask .share rect").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0
    opened.go("overview")
    expect(number(page, "Answers")).to_have_text(str(before + 1))


@pytest.mark.parametrize("name", ["zoe", "ward/7 ü"])
def test_forget_and_receipt(house, visit, name):
    opened = visit(house.url)
    page = opened.sign_in(house.keys["curator"], "people")
    page.get_by_label("Name of the owner").fill(name)
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#statement")).to_contain_text(name)
    forget = page.get_by_role("button", name="Forget", exact=True)
    page.get_by_label("type the name again").fill(name[:-1])
    expect(forget).to_be_disabled()
    page.get_by_label("type the name again").fill(name)
    with page.expect_download() as download:
        forget.click()
    receipt = json.loads(download.value.path().read_text())
    assert json.loads(page.locator("#receipt-json").inner_text()) == receipt
    keys = proof.read_keys(json.dumps(house.ask("v1/signing-key")))
    assert proof.check([download.value.path().read_text()], keys).problem is None  # as JavaScript writes its numbers

    (entry,) = [one for one in house.ask("v1/audit?limit=1000")["entries"] if one["hash"] == receipt["audit_hash"]]
    assert (entry["kind"], entry["at"], entry["hash"]) == ("forget", receipt["at"], receipt["audit_hash"])
    facts = {name: value for name, value in entry["body"].items() if name != "books"}  # a digest of the whole store
    assert facts == {"records": receipt["records"], "owners": receipt["owners_forgotten"]}
    assert receipt["owners"] == [name]
    with page.expect_download() as again:
        page.get_by_role("link", name="Download the receipt").click()
    assert json.loads(again.value.path().read_text()) == receipt
    assert again.value.suggested_filename == f"receipt-{receipt['audit_hash'][:12]}.json"
    opened.go("audit")
    row = page.locator("#audit-rows tr").first
    expect(row).to_contain_text("Forgot 1 owner")
    expect(row.locator("code")).to_have_attribute("title", receipt["audit_hash"])


def test_the_trail_is_paged(house, visit):
    for i in range(12):  # a query that was asked before would be answered from the transcript
        query = {"name": "features", "shape": [1, 4], "datatype": "FP64", "data": [1, i, i * i, 0]}
        house.ask("v2/models/indknn/infer", "POST", {"inputs": [query]})
    page = visit(house.url).sign_in(house.keys["auditor"], "audit")
    entries = house.ask("v1/audit?limit=1000")["entries"]
    seen = []
    while True:
        seen += page.locator("#audit-rows td:first-child").all_inner_texts()
        older = page.get_by_role("button", name="Older")
        if older.get_attribute("aria-disabled") == "true":
            break
        before = page.locator("#audit-range").inner_text()
        older.click()
        expect(page.locator("#audit-range")).not_to_have_text(before)
    assert seen == [str(entry["position"]) for entry in reversed(entries)]
    assert len(seen) > 20


def test_a_refresh_that_comes_late_does_not_turn_the_page_back(house, visit):
    for i in range(12):
        query = {"name": "features", "shape": [1, 4], "datatype": "FP64", "data": [2, i, i * i, 1]}
        house.ask("v2/models/indknn/infer", "POST", {"inputs": [query]})
    page, late = visit(house.url).sign_in(house.keys["auditor"], "audit"), []
    page.route("**/v1/audit?after=*", lambda *route: late.append(route[0]), times=1)
    refresh, shown = page.get_by_role("button", name="Refresh"), page.locator("#audit-range")
    newest = shown.inner_text()
    with page.expect_request("**/v1/audit?after=*"):
        refresh.click()
    page.get_by_role("button", name="Older").click()
    expect(shown).not_to_have_text(newest)
    older = shown.inner_text()
    late[0].continue_()
    expect(refresh).not_to_have_attribute("aria-busy", "true")
    assert shown.inner_text() == older


def test_a_statement_is_rounded_and_names_its_observers(house, visit):
    page = visit(house.url).sign_in(house.keys["curator"], "people")
    page.get_by_label("Name of the owner").fill("patient-3")
    page.get_by_role("button", name="Look up").click()
    facts = house.ask("v1/owners/patient-3")
    one, together = facts["one_analyst"], facts["together"]
    share = f"{100 * one['spent'] / one['budget']:g}% of the budget"
    shown = page.locator("#statement")
    for words in (
        f"Spent, one analyst{share}",
        f"Spent, all analysts together{together['spent']:.4g}; no limit",
        f"ε so far, one analyst{one['epsilon_so_far']:.4g} of 1 promised, at δ = 1e-5, filter gdp",
        "rounded up to a whole 1/50 of B",
    ):
        expect(shown).to_contain_text(words)
    expect(shown).not_to_contain_text("Part of")


def test_purge_wants_a_word_and_says_what_everybody_sees(house, visit):
    opened = visit(house.url)
    page = opened.sign_in(house.keys["curator"], "records")
    button = page.get_by_role("button", name="Purge")
    expect(page.locator("#purge-hint")).to_contain_text("Everybody who asks again can see that a purge happened.")
    expect(page.locator("#purge-hint")).to_contain_text("never because one person was forgotten")
    page.get_by_label("type the word purge").fill("purg")
    expect(button).to_be_disabled()
    page.get_by_label("type the word purge").fill("purge")
    button.click()
    expect(page.locator("#purge-result")).to_contain_text("everybody who asks again can see that a purge happened")
    assert house.ask("v1/audit?limit=1000")["entries"][-1]["kind"] == "purge"
    expect(button).to_be_disabled()
    opened.go("audit")
    expect(page.locator("#audit-rows tr").first).to_contain_text("Purged")
    assert visit(house.url).sign_in(house.keys["auditor"], "records").locator("#purge").is_hidden()

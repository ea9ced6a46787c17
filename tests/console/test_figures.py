"""The figures of a store after 3,003 answers: the page shows what HTTP and the command line say (rule 15)."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from helpers.asking import declared
from helpers.commands import run
from indknn.settings import Settings
from indknn.store import Store

pytestmark = [pytest.mark.chromium, pytest.mark.slow]


def test_the_page_shows_the_figures_of_all_other_doors(tmp_path, serve, visit):
    path, rng = tmp_path / "people.store", np.random.default_rng(1)
    y = rng.integers(2, size=400)
    with Store.create(path, Settings.of(4, ("a", "b"))) as store:
        store.add(
            np.eye(4)[y] + 0.3 * rng.normal(size=(400, 4)), np.array(["a", "b"])[y], [f"p{i}" for i in range(400)]
        )
        for analyst, count in (("ann", 2000), ("bob", 1003)):
            declared(store, analyst).predict(rng.normal(size=(count, 4)), analyst)
    printed = run("status", path, code=0).stdout
    facts = json.loads(run("status", path, "--json", code=0).stdout)
    house = serve(path, roles=["auditor"])
    house.key("analyst", "bob", max_queries=2500)  # ann has no key, and so no limit
    opened = visit(house.url)
    page = opened.sign_in(house.keys["auditor"])
    told = house.ask("v1/status", role="auditor")
    assert {name: told[name] for name in told.keys() & facts.keys()} == {
        n: facts[n] for n in told.keys() & facts.keys()
    }

    shown = dict(
        zip(
            page.locator("#numbers dt").all_inner_texts(),
            page.locator("#numbers strong").all_inner_texts(),
            strict=True,
        )
    )
    assert shown["Answers"] == "3,003"
    assert shown["Queries left, forecast"] == facts["forecast"]["words"] == "no end in sight"
    assert float(shown["Largest ε so far"]) == pytest.approx(facts["one_analyst"]["epsilon_so_far"], rel=1e-3)
    assert shown["Exhausted owners"] == str(facts["exhausted"])
    expect(page.locator("#numbers")).to_contain_text(facts["forecast"]["why"])
    (median,) = re.findall(r"median owner has spent ([\d.]+)%", page.locator("#spent .sentence").inner_text())
    (same,) = re.findall(r"median person has spent ([\d.]+)%", printed)
    assert float(median) == float(same) > 0
    expect(page.locator("#answers .sentence")).to_contain_text("3,003 answers")

    opened.go("analysts")
    rows = page.locator("#analysts-rows tr")
    expect(rows).to_have_count(2)
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert cells == [["ann", "2,000", "0", "no limit", "1"], ["bob", "1,003", "1", "1,497", "1"]]
    assert "analyst ann: 2,000 answers, no limit of queries" in printed

    key = tmp_path / "auditor.key"
    key.write_text(house.keys["auditor"])
    asked = json.loads(run("status", "--url", house.url, "--key", key, "--json", code=0).stdout)
    assert asked["by_analyst"] == house.ask("v1/analysts", role="auditor")["analysts"]
    assert asked["forecast"] == facts["forecast"]

    opened.go("audit")
    expect(page.locator("#audit-rows tr").first).to_be_visible()
    trail = " ".join(page.locator("#audit-rows td:nth-child(2)").all_inner_texts())
    assert sum(int(n.replace(",", "")) for n in re.findall(r"Answered ([\d,]+) quer", trail)) == 3003

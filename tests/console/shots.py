"""The pictures in docs/img: `PYTHONPATH=tests python -m console.shots docs/img`. With `--all`, every task to look at.

The store is made up, and so are its dates: a fortnight of answers in a second.
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image
from playwright.sync_api import expect, sync_playwright

from console.serving import House
from indknn.settings import Settings
from indknn.store import Store
from indknn.tables import Category, Date, Number, Ordered, Schema, YesNo
from indknn.tables.schema import to_plain

TASKS = ("overview", "ask", "people", "analysts", "records", "audit")
PICTURES = [  # name, task, width, height
    ("console", "overview", 1280, 900),
    ("console-ask", "ask", 1280, 800),
    ("console-phone", "ask", 390, 1260),
]
SCHEMA = Schema(
    {
        "age": Number(bounds=(0, 100)),
        "days in hospital": Number(bounds=(0, 60)),
        "ward": Category(values=("surgery", "medicine", "eye", "children")),
        "severity": Ordered(values=("low", "middle", "high")),
        "lives alone": YesNo(),
        "admitted": Date(bounds=("2024-01-01", "2026-12-31")),
    },
    label="back within 30 days",
    classes=("no", "yes"),
    owner="patient",
    record_id="visit",
)


def draw(rng, n):
    """Stays in a hospital, and who came back."""
    age, days, severity, alone = (
        rng.integers(1, 100, n),
        rng.integers(1, 60, n),
        rng.integers(3, size=n),
        rng.random(n) < 0.4,
    )
    back = age / 40 + days / 20 + severity + 1.5 * alone + rng.normal(size=n) > 5.5
    when = [f"2026-{1 + i % 2:02}-{1 + i % 28:02}" for i in range(n)]
    columns = {"age": age, "days in hospital": days, "ward": rng.choice(SCHEMA.columns["ward"].values, n)}
    names = np.array(SCHEMA.columns["severity"].values)[severity]
    return columns | {"severity": names, "lives alone": alone, "admitted": when}, np.where(back, "yes", "no")


def fortnight(path):
    rng, clock = np.random.default_rng(5), [datetime(2026, 3, 2, 8, tzinfo=UTC)]

    def later():
        clock[0] += timedelta(hours=float(rng.exponential(2.0)))
        return clock[0].strftime("%Y-%m-%dT%H:%M:%SZ")

    settings = Settings.of(SCHEMA.n_features, SCHEMA.classes, epsilon=1.0, schema=to_plain(SCHEMA))
    with patch("indknn.store.chain.now", later), Store.create(path, settings) as store:
        for name in ("ann", "ben"):
            store.add_analyst(name)
        store.add(*draw(rng, 6000), [f"patient-{i % 4000}" for i in range(6000)])
        for i in range(160):
            store.predict(draw(rng, 1 + int(rng.integers(30)))[0], ("ann", "ben", "ann")[i % 3])
            if i % 70 == 40:
                store.forget([f"patient-{i}"])


def use(page, task):
    """Something to see: an answer, a statement."""
    if task == "ask":
        for name, text in {"age": "71", "days in hospital": "12", "admitted": "2026-02-20"}.items():
            page.get_by_label(name, exact=True).fill(text)
        for name, text in {"ward": "surgery", "severity": "high", "lives alone": "yes"}.items():
            page.get_by_label(name, exact=True).select_option(label=text)
        page.get_by_role("button", name="Ask, and spend").click()
        expect(page.locator("#ask .result strong")).to_be_visible(timeout=60_000)
    elif task == "people":
        page.get_by_label("Name of the owner").fill("patient-7")
        page.keyboard.press("Enter")
        expect(page.locator("#forget-form")).to_be_visible(timeout=60_000)
    page.evaluate("document.activeElement.blur(); scrollTo({ top: 0, behavior: 'instant' })")
    page.wait_for_timeout(300)


def save(page, file, **options):
    """A few colours are enough, and a repository keeps every picture for ever."""
    page.screenshot(path=file, **options)
    Image.open(file).convert("RGB").quantize(64).save(file, optimize=True)


def main(folder, *more):
    wanted = PICTURES
    if more:
        wanted = [(f"{task}-{width}", task, width, 900) for task in TASKS for width in (1280, 390)]
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        path = Path(place) / "hospital.store"
        fortnight(path)
        house = House(path, roles=["admin"])
        house.key("analyst", "ann", max_queries=5000)
        house.key("analyst", "ben")
        house.start()
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            for scheme in ("light", "dark")[: 2 if more else 1]:
                for name, task, width, height in wanted:
                    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                    page.goto(f"{house.url}#{task}")
                    page.get_by_label("API key").fill(house.keys["admin"])
                    page.keyboard.press("Enter")
                    expect(page.locator("#updated")).to_contain_text("Updated", timeout=60_000)
                    use(page, task)
                    end = "-dark" if scheme == "dark" else ""
                    save(page, Path(folder) / f"{name}{end}.png", full_page=bool(more))
                    page.close()
        finally:
            browser.close()
            house.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

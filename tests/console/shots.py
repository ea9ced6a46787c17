"""The pictures in docs/img: `PYTHONPATH=tests python -m console.shots docs/img`. With `--all`, more to look at.

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

from console.serving import LABELS, House
from indknn.settings import Settings
from indknn.store import Store

VIEWS = [  # name, width, height, scheme
    ("console", 1200, 1250, "light"),
    ("console-phone", 360, 860, "light"),
    ("console-dark", 1200, 1250, "dark"),
]


def fortnight(path):
    rng, clock = np.random.default_rng(5), [datetime(2026, 3, 2, 8, tzinfo=UTC)]

    def draw(n):
        y = rng.choice(3, size=n, p=[0.6, 0.3, 0.1])
        return np.eye(6)[y] + 0.28 * rng.normal(size=(n, 6)), np.array(LABELS)[y]

    def later():
        clock[0] += timedelta(hours=float(rng.exponential(2.0)))
        return clock[0].strftime("%Y-%m-%dT%H:%M:%SZ")

    settings = Settings(n_features=6, classes=LABELS, epsilon=1.0, tau=0.7, sigma2=6.0, max_queries=2000, reuse="none")
    with patch("indknn.store.chain.now", later), Store.create(path, settings) as store:
        store.add(*draw(1200), [f"patient-{i % 700}" for i in range(1200)])
        for i in range(160):
            store.predict(draw(1 + int(rng.integers(3)))[0], "ann")
            if i % 70 == 40:
                store.forget([f"patient-{i}"])


def save(page, file, **options):
    """A few colours are enough, and a repository keeps every picture for ever."""
    page.screenshot(path=file, **options)
    Image.open(file).convert("RGB").quantize(64).save(file, optimize=True)


def main(folder, *more):
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        path = Path(place) / "people.store"
        fortnight(path)
        house = House(path, roles=["admin"]).start()
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            for name, width, height, scheme in VIEWS if more else VIEWS[:2]:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(house.url)
                page.get_by_label("API key").fill(house.keys["admin"])
                page.keyboard.press("Enter")
                expect(page.locator("#updated")).to_contain_text("Updated")
                page.evaluate("document.activeElement.blur()")
                if width < 400:
                    page.evaluate("document.querySelector('#overview').scrollIntoView({behavior: 'instant'})")
                save(page, Path(folder) / f"{name}.png")
                if more:
                    page.get_by_label("Name of the owner").fill("patient-7")
                    page.keyboard.press("Enter")
                    expect(page.locator("#forget-form")).to_be_visible()
                    save(page, Path(folder) / f"{name}-full.png", full_page=True)
                page.close()
        finally:
            browser.close()
            house.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

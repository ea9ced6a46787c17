"""The site is built without a warning, loads nothing from elsewhere, and its generated pages are not out of date."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright
from tools import reference

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_pages_say_what_the_program_does_now(name):
    written = (reference.FOLDER / name).read_text()
    assert written == reference.PAGES[name](), f"docs/reference/{name} is out of date: make reference"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs", reason="the site needs pip install '.[docs]'")
    pytest.importorskip("material", reason="the site needs pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # Not with --quiet: then warnings are not counted, and --strict does nothing.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Loads(HTMLParser):
    """What a page loads by itself, and where its links lead."""

    def __init__(self, page):
        super().__init__()
        self.loaded, self.links, self.ids = [], [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        self.ids |= {facts.get("id")}
        if tag in {"img", "script", "iframe", "source", "video", "audio", "embed", "object"}:
            self.loaded += [facts.get("src"), facts.get("data")]
        if tag == "link" and facts.get("rel") in {"stylesheet", "icon", "preconnect", "preload", "manifest"}:
            self.loaded.append(facts.get("href"))
        if tag == "a":
            self.links.append(facts.get("href"))


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        assert not [url for url in Loads(page).loaded if url and re.match(r"(https?:)?//", url)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", sheet.read_text()), sheet
    assert not list(site.rglob("*.woff*"))


@pytest.mark.slow
def test_links_of_the_built_pages_lead_somewhere(site):
    pages = {page.resolve(): Loads(page) for page in site.rglob("*.html")}
    for page, facts in pages.items():
        if page.name == "404.html":
            continue  # its links begin at the root of a server
        for link in filter(None, facts.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = there / "index.html" if there.is_dir() else there
            assert there.exists(), f"{page.name}: {link}"
            fragment = unquote(parts.fragment)
            if fragment and there in pages and not fragment.startswith("__"):
                assert fragment in pages[there].ids, f"{page.name}: {link}"


@pytest.mark.slow
def test_everybody_finds_their_page_with_one_click(site):
    links = Loads(site / "index.html").links
    for guide in ("table", "texts", "operator", "privacy-officer", "researcher"):
        assert f"guides/{guide}.html" in links


@pytest.fixture(scope="module")
def chromium():
    """A browser that opens pages."""
    found = shutil.which(os.environ.get("INDKNN_CHROMIUM", "/usr/bin/chromium"))
    if found is None:
        pytest.skip("no Chromium at /usr/bin/chromium nor at $INDKNN_CHROMIUM: the pages were NOT looked at")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.chromium
def test_every_page_fits_a_phone_and_asks_nobody_for_anything(site, chromium):
    asked, wide = [], {}
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    page.on("request", lambda one: asked.append(one.url) if one.url.startswith("http") else None)
    page.on("pageerror", lambda error: asked.append(f"error: {error}"))
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[path.name] = width
    page.close()
    assert not asked
    assert not wide


@pytest.mark.slow
@pytest.mark.chromium
def test_the_search_of_a_site_that_is_opened_as_a_file_finds_pages(site, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / "guides" / "table.html").as_uri())
    page.click("[data-md-component=search-query]")
    page.keyboard.type("receipt")
    page.wait_for_selector(".md-search-result__link", state="attached", timeout=60_000)
    found = [link.get_attribute("href") for link in page.query_selector_all(".md-search-result__link")]
    page.close()
    assert any("privacy-officer.html" in link for link in found), found


@pytest.mark.slow
def test_the_search_leaves_out_pages_of_numbers(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert "reproduction/index.html" in found
    assert not [place for place in found if place.startswith("reproduction/") and not place.endswith("index.html")]

"""Chromium, a served store, and a page that tolerates no error but those that a test provokes."""

import os
import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from console.serving import House, make_store

PATIENCE = 120_000
"""Milliseconds after which a page is taken to hang. Nothing is faster or slower because of it."""
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which(os.environ.get("INDKNN_CHROMIUM", "/usr/bin/chromium"))
    if path is None:
        pytest.skip("no Chromium at /usr/bin/chromium nor at $INDKNN_CHROMIUM: the console was NOT tested")
    return path


# By module and not for the whole run: while Playwright runs, no other test of the process can have an event loop.
@pytest.fixture(scope="module")
def browser(chromium):
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def house(tmp_path_factory, chromium):
    """A store with people, answers and keys, served to all tests; each takes other owners."""
    path = tmp_path_factory.mktemp("console") / "people.store"
    make_store(path, owners=["zoe", "zoe", "yan", "ward/7 ü", "xu"], answers=12)
    served = House(path).start()
    yield served
    served.stop()


@pytest.fixture
def serve(chromium):
    """Serves more stores. To be named before `visit`: pages must be gone before their server is."""
    started = []

    def starts(path, **options):
        started.append(House(path, **options).start())
        return started[-1]

    yield starts
    for one in started:
        one.stop()


class Visit:
    """A page, and everything that it complained about."""

    def __init__(self, context, url):
        self.page = context.new_page()
        self.url = url
        self.complaints = []
        self.statuses = set()  # of failed requests that the test provokes
        self.page.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('CSP ' + e.violatedDirective))"
        )
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in {"error", "warning"} else None)
        self.page.on("pageerror", lambda e: self.complaints.append(f"uncaught: {e}"))
        self.page.on("dialog", lambda d: (self.complaints.append(f"dialog: {d.message}"), d.dismiss()))

    def open(self, task=""):
        self.page.goto(f"{self.url}#{task}" if task else self.url)
        return self.page

    def go(self, task):
        """Open another task by its address."""
        self.page.evaluate("task => { location.hash = task; }", task)
        expect(self.page.locator(f"#panels > section[data-page={task}]").first).to_be_visible()
        return self.page

    def sign_in(self, key, task=""):
        page = self.open(task)
        page.get_by_label("API key").fill(key)
        page.keyboard.press("Enter")
        expect(page.locator("#updated")).to_contain_text("Updated")
        return page

    @property
    def unexpected(self):
        """Chromium reports each failed request as an error. Only those that a test provokes are expected."""
        known = {f"{status}" for status in self.statuses}
        network = re.compile(r"Failed to load resource: (?:the server responded with a status of (\d+)|(net::\w+))")
        failed = [(text, network.match(text)) for text in self.complaints]
        return [text for text, match in failed if not (match and (match[1] or match[2]) in known)]


@pytest.fixture
def visit(browser):
    """Opens pages: `visit(house.url, width=360, ...)`. At the end none of them may have complained."""
    visits, contexts = [], []

    def opened(url, *, width=1280, height=900, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        contexts[-1].set_default_timeout(PATIENCE)
        visits.append(Visit(contexts[-1], url))
        return visits[-1]

    yield opened
    for context in contexts:
        context.close()
    assert [text for one in visits for text in one.unexpected] == []

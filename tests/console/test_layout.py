"""For everybody: a phone, a keyboard, little contrast vision, a dark room."""

from itertools import pairwise

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.chromium, pytest.mark.slow]

TOO_FAINT = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const faint = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    seen += 1;
    const style = getComputedStyle(node), ink = parse(node instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(ground(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push([texts.currentNode.textContent.trim(), (a + 0.05) / (b + 0.05)]);
  }
  return { seen, faint };
}"""


TASKS = ("overview", "ask", "people", "analysts", "records", "audit")


def fill_everything(opened):
    """Go through all tasks, with results and errors on each of them."""
    for task in TASKS:
        page = opened.go(task)
        if task == "overview":
            for summary in page.locator("summary").all():
                summary.click()
        elif task == "ask":
            page.locator("#ask-text").fill("1")
            page.get_by_role("button", name="Ask, and spend").click()
            page.locator("#ask-file-text").fill("id,a,b,c,d\n" + "".join(f"q{i},{i},0,1,0\n" for i in range(5)))
            page.get_by_role("button", name="Ask all").click()
            expect(page.get_by_role("link", name="Download the answers")).to_be_visible()
        elif task == "people":
            page.get_by_label("Name of the owner").fill("patient-5")
            page.get_by_role("button", name="Look up").click()
            expect(page.locator("#forget-form")).to_be_visible()
        elif task == "analysts":
            expect(page.locator("#keys-rows tr").first).to_be_visible()
        elif task == "records":
            page.locator("#records-text").fill("a,b\n1,2")
        else:
            expect(page.locator("#audit-rows tr").first).to_be_visible()
        yield task


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_is_wide_enough(house, visit, width):
    opened = visit(house.url, width=width, height=740, has_touch=True, is_mobile=True)
    page = opened.sign_in(house.keys["admin"])
    for task in fill_everything(opened):
        widths = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
        assert widths == [width] * 3, task
        outside = page.evaluate(
            """[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && !e.closest('.scroll, pre, .unseen')
               && e.getBoundingClientRect().right > innerWidth + .5).map(e => e.outerHTML.slice(0, 80))"""
        )
        assert outside == []
        for panel in {"audit": ["#audit"], "analysts": ["#analysts", "#keys"]}.get(task, []):
            # their rows are blocks of lines: nothing to scroll to the right for
            box = page.locator(f"{panel} .scroll")
            assert box.evaluate("box => [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight]") == [
                0,
                0,
            ]
            assert page.locator(f"{panel} tbody tr").first.evaluate("row => row.innerText.length") > 20
        small = page.locator("button:visible, nav a:visible").evaluate_all(
            "all => all.filter(b => b.offsetHeight < 24).map(b => b.textContent)"
        )
        assert small == []


def test_no_task_is_a_long_page(house, visit):
    """All panels on one page were 3,600 pixels high."""
    opened = visit(house.url)
    page = opened.sign_in(house.keys["admin"])
    filled = {"overview": "#numbers strong", "analysts": "#keys-rows tr", "audit": "#audit-rows tr"}
    for task in TASKS:
        opened.go(task)
        expect(page.locator(filled.get(task, "#panels")).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollHeight") < 1800, task


def test_each_task_has_an_address(house, visit):
    opened = visit(house.url)
    page = opened.sign_in(house.keys["admin"], "people")
    expect(page.locator("#people-title")).to_be_focused()
    expect(page).to_have_title("People · indknn console")
    expect(page.locator("nav a[aria-current]")).to_have_text("People")
    page.get_by_role("link", name="Records").click()
    expect(page.locator("#records-title")).to_be_focused()
    assert page.url.endswith("#records")
    shown = page.locator("#panels > section:visible").evaluate_all("all => all.map(s => s.id)")
    assert shown == ["records", "purge"]
    page.go_back()
    expect(page.locator("#people")).to_be_visible()
    expect(page.locator("nav a[aria-current]")).to_have_text("People")
    expect(page.locator("#records")).to_be_hidden()


def test_what_a_key_does_not_allow_has_no_address(house, visit):
    page = visit(house.url).sign_in(house.keys["analyst"], "audit")
    expect(page.locator("#guarantee")).to_be_visible()
    expect(page.locator("#audit")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(house, visit, scheme):
    opened = visit(house.url, color_scheme=scheme)
    page, seen = opened.sign_in(house.keys["admin"]), 0
    for task in fill_everything(opened):
        found = page.evaluate(TOO_FAINT)
        assert found["faint"] == [], task
        seen += found["seen"]
    assert seen > 150


def test_every_field_and_region_has_a_name(house, visit):
    opened = visit(house.url)
    page = opened.sign_in(house.keys["admin"])
    assert len(list(fill_everything(opened))) == len(TASKS)
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, textarea, select')].filter(e => e.labels.length !== 1).map(e => e.id)
           .concat([...document.querySelectorAll('section, [role=region], nav')]
           .filter(e => !(e.ariaLabel || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent)).map(e => e.id))"""
    )
    assert nameless == []
    dangling = page.evaluate(
        """[...document.querySelectorAll('[aria-describedby], [aria-labelledby]')].flatMap(e =>
           `${e.getAttribute('aria-describedby') ?? ''} ${e.getAttribute('aria-labelledby') ?? ''}`.trim().split(/\\s+/))
           .filter(id => !document.getElementById(id))"""
    )
    assert dangling == []
    headings = page.locator("h1, h2, h3").evaluate_all("all => all.map(h => Number(h.tagName[1]))")
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))


def active(page):
    return page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")


def tab_to(page, name, most=60):
    passed = []
    for _ in range(most):
        page.keyboard.press("Tab")
        passed.append(active(page))
        if passed[-1] == name:
            ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert ring != "none", name
            return
    raise AssertionError(f"{name} was not reached: {passed}")


def test_an_owner_is_forgotten_without_a_mouse(house, visit):
    page = visit(house.url).open()
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type(house.keys["curator"])
    page.keyboard.press("Enter")
    expect(page.locator("#overview-title")).to_be_focused()
    page.locator(".skip").focus()
    tab_to(page, "People")
    page.keyboard.press("Enter")
    expect(page.locator("#people-title")).to_be_focused()
    tab_to(page, "owner-name")
    page.keyboard.type("xu")
    page.keyboard.press("Enter")
    expect(page.locator("#forget-form")).to_be_visible()
    tab_to(page, "forget-name", most=6)
    page.keyboard.type("xu")
    tab_to(page, "Forget", most=1)
    with page.expect_download():
        page.keyboard.press("Enter")
    expect(page.locator("#receipt-title")).to_be_focused()
    tab_to(page, "receipt-link", most=3)
    with page.expect_download():
        page.keyboard.press("Enter")


def test_tab_goes_down_the_page_and_the_skip_link_works(house, visit):
    page = visit(house.url).sign_in(house.keys["admin"], "audit")
    page.locator(".skip").focus()
    stops = []
    for _ in range(60):
        stop = page.evaluate(
            """(() => { const e = document.activeElement; if (e === document.body) return null;
               const all = [...document.querySelectorAll('*')]; return [all.indexOf(e), e.id || e.textContent.trim()]; })()"""
        )
        if stop is None:
            break
        stops.append(stop)
        page.keyboard.press("Tab")
    names = [name for _, name in stops]
    assert "audit-older" in names
    assert "sign-out" in names
    places = [place for place, _ in stops]
    assert places == sorted(places)

    page.reload()
    expect(page.locator("#key")).to_be_focused()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_no_motion_for_those_who_asked(house, visit):
    page = visit(house.url, reduced_motion="reduce").sign_in(house.keys["auditor"])
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"

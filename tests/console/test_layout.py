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


def fill_everything(page):
    """Results and errors on all panels."""
    page.locator("#query-text").fill("1")
    page.get_by_role("button", name="Ask, and spend").click()
    page.locator("#records-text").fill("a,b\n1,2")
    page.get_by_label("Name of the owner").fill("patient-5")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#forget-form")).to_be_visible()
    for summary in page.locator("summary").all():
        summary.click()


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_is_wide_enough(house, visit, width):
    page = visit(house.url, width=width, height=740, has_touch=True, is_mobile=True).sign_in(house.keys["admin"])
    fill_everything(page)
    widths = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
    assert widths == [width] * 3
    outside = page.evaluate(
        """[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && !e.closest('.scroll, pre, .unseen')
           && e.getBoundingClientRect().right > innerWidth + .5).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    for panel in ("#audit", "#keys"):  # their rows are blocks of lines: nothing to scroll to the right for
        assert page.locator(f"{panel} .scroll").evaluate("box => box.scrollWidth - box.clientWidth") == 0
        assert page.locator(f"{panel} tbody tr").first.evaluate("row => row.innerText.length") > 20
    small = page.locator("button:visible").evaluate_all(
        "all => all.filter(b => b.offsetHeight < 24).map(b => b.textContent)"
    )
    assert small == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(house, visit, scheme):
    page = visit(house.url, color_scheme=scheme).sign_in(house.keys["admin"])
    fill_everything(page)
    page.wait_for_timeout(100)
    found = page.evaluate(TOO_FAINT)
    assert found["faint"] == []
    assert found["seen"] > 80


def test_every_field_and_region_has_a_name(house, visit):
    page = visit(house.url).sign_in(house.keys["admin"])
    fill_everything(page)
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, textarea')].filter(e => e.labels.length !== 1).map(e => e.id)
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
    expect(page.locator("#guarantee-title")).to_be_focused()
    tab_to(page, "owner-name")
    page.keyboard.type("xu")
    page.keyboard.press("Enter")
    expect(page.locator("#forget-form")).to_be_visible()
    tab_to(page, "forget-name", most=3)
    page.keyboard.type("xu")
    tab_to(page, "Forget", most=1)
    with page.expect_download():
        page.keyboard.press("Enter")
    expect(page.locator("#receipt-title")).to_be_focused()
    tab_to(page, "receipt-link", most=3)
    with page.expect_download():
        page.keyboard.press("Enter")


def test_tab_goes_down_the_page_and_the_skip_link_works(house, visit):
    page = visit(house.url).sign_in(house.keys["admin"])
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

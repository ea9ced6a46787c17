"""Every block of Python and shell in the site and in the README runs, in the order of its page."""

import os
import shutil
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from helpers.ports import free_port
from pages.blocks import BLOCK, RUN, SHOWN, blocks
from pages.shell import Shell

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRINTED = {
    "docs/tutorial.md": ('"ready":true', '"id":"first"', '"receipt":"erasure"', '"records":2001', "all is well"),
    "docs/quickstart.md": ("forgotten", "all is well"),
}
"""What the shell of a page must have shown."""


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_says_why_not(page):
    text = page.read_text()
    for block in blocks(text):
        assert block.language in RUN | SHOWN, f"line {block.line}: {block.language}"
        assert block.reason is None or len(block.reason) > 10, f"line {block.line}: say why"
    assert "```" not in BLOCK.sub("", text), "a block without a language"
    indented = [token.content for token in MarkdownIt().parse(text) if token.type == "code_block"]
    assert not indented, "write code between ```, so that it runs here"


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="pages use bash and curl")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language in RUN and not b.reason for b in blocks(p.read_text()))], ids=name_of
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    port = str(free_port())
    monkeypatch.setitem(os.environ, "PYTHONWARNINGS", "ignore")
    names = {"__name__": "__main__", "Path": Path, "ROOT": ROOT}
    shell, told = Shell(tmp_path), ""
    try:
        for block in blocks(page.read_text()):
            code = block.code.replace("8080", port)
            if block.reason or block.language not in RUN:
                continue
            if block.language == "sh":
                told += shell.run(code)
            else:
                exec(compile("\n" * block.line + code, str(page), "exec"), names)
    finally:
        shell.close()
    for expected in PRINTED.get(name_of(page), ()):
        assert expected in told, told

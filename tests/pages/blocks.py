"""The code of a page, as its readers would run it.

Blocks of `python` share one namespace and blocks of `sh` one shell, both in the same folder, in the order of the page. Two
comments in Markdown are for this program. `<!-- before python ... -->`, or `sh`, makes what a reader would bring along.
`<!-- not run: reason -->` before a block leaves it out.
"""

import re
from dataclasses import dataclass

BLOCK = re.compile(
    r"<!-- before (?P<kind>python|sh)\n(?P<before>.*?)-->"
    r"|(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.S | re.M,
)
RUN = {"python", "sh"}
SHOWN = {"text", "json", "ini", "yaml", "toml", "sql", "console"}
"""Languages of blocks that nobody runs: what is printed, and files."""


@dataclass(frozen=True)
class Block:
    """A piece of code, the line it starts at, and why it is not run."""

    language: str
    code: str
    line: int
    reason: str | None


def blocks(page):
    """All blocks of a page that is Markdown."""
    for found in BLOCK.finditer(page):
        line = page.count("\n", 0, found.start()) + 1
        if found["before"] is not None:
            yield Block(found["kind"], found["before"], line, None)
            continue
        indent = found["indent"]
        code = re.sub(rf"^{indent}", "", found["code"], flags=re.M) if indent else found["code"]
        yield Block(found["language"], code, line, found["reason"])

"""Measures how large the house is and how well it can be read, and fails if a limit is broken: `python -m tools.house`.

For every package: lines of Python, files, and the longest function. For all code: passages of eight lines that stand in
two places, and classes of one name. `--roads` adds how often one call moves from file to file
(`benchmarks/switches.py`), which takes a while.
Growth is allowed, but it is a decision: whoever raises a limit writes it down here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSAGE = 8
LIMITS: dict[str, tuple[int, int, int]] = {
    # package: lines, files, the longest function
    "indknn": (30169, 114, 55),
    "indknn/*.py": (3254, 14, 34),
    "indknn/answering": (975, 4, 28),
    "indknn/cli": (2796, 11, 55),
    "indknn/client": (955, 3, 42),
    "indknn/cluster": (1142, 6, 25),
    "indknn/core": (2658, 14, 43),
    "indknn/ledger": (1386, 4, 41),
    "indknn/models": (2778, 12, 39),
    "indknn/records": (1951, 8, 26),
    "indknn/server": (4275, 12, 51),
    "indknn/store": (5673, 18, 43),
    "indknn/tables": (2326, 8, 42),
    "indknn_lab": (11103, 58, 56),
}
DUPLICATES = 0
"""How many passages of eight lines may stand twice."""
TWINS = 9
"""How many classes of the product may have the name of another one."""
ROADS: dict[str, int] = {
    # road: how often one call may move from file to file, in the shortest of five turns.
    "estimator, default": 28,
    "estimator, Algorithm 3": 36,
    "store, default": 51,
    "store, Algorithm 3": 60,
    "HTTP, default": 60,
    "HTTP, Algorithm 3": 70,
    "Store.add": 73,
    "Store.forget": 67,
    "indknn add, csv, schema": 241,
}


@dataclass(frozen=True)
class Room:
    """The size of a package. `longest` is the number of lines of its longest function, and its name."""

    lines: int
    files: int
    longest: tuple[int, str]


def rooms(source: Path) -> dict[str, Room]:
    """The packages of `indknn` with the modules beside them, `indknn` as a whole, and `indknn_lab` as one."""
    found: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*.py")):
        package, *inside = path.relative_to(source).parts
        folder = f"{package}/{inside[0] if len(inside) > 1 else '*.py'}"
        for name in [package] if package == "indknn_lab" else [package, folder]:
            found.setdefault(name, []).append(path)
    return {name: _room(paths) for name, paths in sorted(found.items())}


def _room(paths: list[Path]) -> Room:
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    longest = max((one for path, text in texts.items() for one in _functions(path, text)), default=(0, "none"))
    return Room(sum(len(text.splitlines()) for text in texts.values()), len(paths), longest)


def _functions(path: Path, text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or 0) - node.lineno + 1, f"{path.name}:{node.name}"


def passages(source: Path) -> list[str]:
    """Where eight lines or more are the same as at an earlier place. Blank lines, comments and imports do not count."""
    first: dict[tuple[str, ...], tuple[Path, int]] = {}
    found: list[str] = []
    for path in sorted(source.rglob("*.py")):
        lines, last = _telling(path), None
        for i in range(len(lines) - PASSAGE + 1):
            window, here = tuple(text for _, text in lines[i : i + PASSAGE]), lines[i][0]
            where = first.setdefault(window, (path, here))
            if where == (path, here):
                last = None
                continue
            if last is None:
                found.append(f"{path.relative_to(source)}:{here} is as {where[0].relative_to(source)}:{where[1]}")
            last = where
    return found


def _telling(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that count, each with its number."""
    text = path.read_text(encoding="utf-8")
    imports = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    numbered = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [(n, line) for n, line in numbered if line and not line.startswith("#") and n not in imports]


def twins(source: Path) -> list[str]:
    """Where a class has the name of another class of the product, for every second one."""
    first: dict[str, str] = {}
    found: list[str] = []
    for path in sorted((source / "indknn").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            where = f"{path.relative_to(source)}:{node.lineno}"
            if isinstance(node, ast.ClassDef) and first.setdefault(node.name, where) != where:
                found.append(f"{where} is {node.name} as {first[node.name]}")
    return found


def broken(measured: dict[str, Room], twice: list[str], named: list[str]) -> list[str]:
    """One line for every limit that is broken."""
    found = []
    for name, room in measured.items():
        limits = LIMITS.get(name)
        if limits is None:
            found.append(f"{name} has no limit: write one into tools/house.py")
            continue
        sizes = (("lines", room.lines), ("files", room.files), (f"lines in {room.longest[1]}", room.longest[0]))
        found += [
            f"{name} has {n} {what}, at most {most}" for (what, n), most in zip(sizes, limits, strict=True) if n > most
        ]
    if len(twice) > DUPLICATES:
        found.append(f"{len(twice)} passages stand twice, at most {DUPLICATES}: {'; '.join(twice)}")
    if len(named) > TWINS:
        found.append(f"{len(named)} classes have the name of another, at most {TWINS}: {'; '.join(named)}")
    return found


def broken_roads() -> list[str]:
    """One line for every road that changes files too often."""
    from benchmarks.switches import switches  # noqa: PLC0415 - it needs the whole product

    measured = switches()
    for name, n in measured.items():
        print(f"{name:<30}{n:>6}   at most {ROADS.get(name, 0)}")
    return [
        f"{name} changes files {n} times, at most {ROADS.get(name, 0)}"
        for name, n in measured.items()
        if n > ROADS.get(name, 0)
    ]


def main(words: list[str]) -> int:
    """Print everything. Returns 1 if a limit is broken."""
    measured, twice, named = rooms(ROOT / "src"), passages(ROOT / "src"), twins(ROOT / "src")
    print(f"{'':<22}{'lines':>8}{'files':>8}   the longest function")
    for name, room in measured.items():
        print(f"{name:<22}{room.lines:>8}{room.files:>8}   {room.longest[0]} ({room.longest[1]})")
    print(f"passages that stand twice: {len(twice)}; classes with the name of another: {len(named)}")
    found = broken(measured, twice, named) + (broken_roads() if "--roads" in words else [])
    for line in found:
        print(f"house: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`indknn bench`: runs the benchmarks, which are in the source checkout next to the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from indknn.errors import InvalidInputError

_SUITES = {"scan": "scan.py", "noise": "noise.py", "store": "store.py"}


@click.command("bench")
@click.argument("suite", type=click.Choice(sorted(_SUITES)), default="scan")
@click.option("--quick", is_flag=True, help="Take half a minute, with rough results.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/bench"), show_default=True, help="The folder for scan."
)
@click.pass_context
def bench(ctx: click.Context, suite: str, quick: bool, out: Path) -> None:
    """Measure the speed on this machine, compared with other libraries. Times are noisy, so look at the ratios.

    You need a source checkout and `pip install -e '.[bench]'`.

    \b
    Examples:
      indknn bench --quick
      indknn bench store --quick
    """
    script = Path(__file__).resolve().parents[3] / "benchmarks" / _SUITES[suite]
    if not script.is_file():
        raise InvalidInputError("benchmarks come with the source, not with the installed package: run it in a checkout")
    words = [sys.executable, str(script)]
    words += ["--out", str(out)] if suite == "scan" else []
    words += ["--quick"] if quick and suite != "noise" else []
    ctx.exit(subprocess.run(words, check=False).returncode)

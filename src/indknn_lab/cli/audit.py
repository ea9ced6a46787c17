"""`indknn audit`: runs the audit from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import click

from indknn.cli.options import stages


@click.command("audit")
@click.option(
    "--minutes",
    type=float,
    help="How long it may take; 60 gives tight bounds. Default: as long as all checks take, some minutes.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/audit"),
    show_default=True,
    help="The folder for the report.",
)
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same figures.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
@click.pass_context
def audit(ctx: click.Context, minutes: float | None, out: Path, seed: int, as_json: bool) -> None:
    """Attack this software's own promise: compare measured epsilon with the claim, and catch faulty versions.

    It writes audit.html and audit.json. It makes its own small stores and does not touch yours.

    \b
    The verdict and the exit code:
      PASSED      0  everything was tried, and nothing was found
      FAILED      1  a measured epsilon exceeds its claim (at 95% confidence over all scenarios together), a check
                     fails, or a faulty version (a mutant) is not caught
      INCOMPLETE  4  nothing was found, but there was no time for everything; what is missing is listed

    \b
    Examples:
      indknn audit
      indknn audit --minutes 60 --out out/audit-long
    """
    from indknn_lab.audits import report as reports  # noqa: PLC0415 - takes a second, which other commands do not need
    from indknn_lab.audits.runner import Outcome, run  # noqa: PLC0415

    with stages() as show:
        report = run(minutes, seed, show)
    plain, page = reports.write(report, out)
    if as_json:
        click.echo(json.dumps(reports.as_dict(report), indent=1))
    else:
        click.echo(reports.summary(report))
        click.echo(f"Report: {page} and {plain}")
    ctx.exit({Outcome.PASSED: 0, Outcome.FAILED: 1, Outcome.INCOMPLETE: 4}[report.outcome])

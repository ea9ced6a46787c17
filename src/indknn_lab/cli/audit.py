"""The audit from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import click

from indknn.cli.progress import stages


@click.command("audit")
@click.option(
    "--minutes",
    default=2.0,
    show_default=True,
    help="How long; what there is no time for is left out, and listed. 60 for tight bounds.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/audit"), show_default=True)
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same figures.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
@click.pass_context
def audit(ctx: click.Context, minutes: float, out: Path, seed: int, as_json: bool) -> None:
    """Attack this software's own promise: measured against claimed epsilon, and mutants that must be caught.

    Writes audit.html and audit.json. Exit code 1 if anything measured exceeds its claim at 95% confidence, all
    scenarios together, or a mutant survives. It makes its own small stores and touches none of yours.

    \b
    Examples:
      indknn audit
      indknn audit --minutes 60 --out out/audit-long
    """
    from indknn_lab.audits import report as reports  # noqa: PLC0415 - takes a second, which other commands do not need
    from indknn_lab.audits.runner import run  # noqa: PLC0415

    with stages() as show:
        report = run(minutes, seed, show)
    plain, page = reports.write(report, out)
    if as_json:
        click.echo(json.dumps(reports.as_dict(report), indent=1))
    else:
        click.echo(reports.summary(report))
        click.echo(f"Report: {page} and {plain}")
    ctx.exit(1 if report.problems else 0)

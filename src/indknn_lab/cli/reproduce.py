"""`indknn reproduce`: reproduces the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from indknn.cli.options import stages
from indknn.errors import IndKNNError

if TYPE_CHECKING:
    from indknn_lab.experiments.items import Outcome


@click.command("reproduce")
@click.argument("name", default="list")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Your own file (features in npz, or a table), or a folder with cifar10-*.npz, fmnist-*.npz, agnews-*.npz, "
    "dbpedia-*.npz and known tables. Without it: the packaged Fashion-MNIST.",
)
@click.option("--schema", type=click.Path(path_type=Path, dir_okay=False), help="The schema of your own table.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A Python file with your own method, for every item that compares accuracies of methods. May be repeated.",
)
@click.option(
    "--features",
    help="The extractor to use where a data set has several files, for example r50 for cifar10-r50.npz. Default: the "
    "best one that is there (vit, simclr, lite3, r50, r50-logits, then others by name), as in the paper. Table 2 uses "
    "all, and the study of sizes r50.",
)
@click.option(
    "--set",
    "changed",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a part of Ind-KNN in every unit: T, epsilon, delta, kernel, bandwidth, weights (kernel or equal), "
    "noise ('by K' or fixed), sigma1 (a multiple of the paper's), tables, bits. What an item varies itself stays as "
    "it is. May be repeated.",
)
@click.option("--label", help="The label column of your own table, if no schema names it.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/reproduce"),
    show_default=True,
    help="The folder for results and report. A run that was stopped continues from what is there.",
)
@click.option("--quick", is_flag=True, help="A rehearsal of minutes with little data. Its figures are not results.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="How many processes to use.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Runs per point in `endless`. Default: 3 or 5 if a goal depends on it, else 1.",
)
@click.option(
    "--epsilon", "only", multiple=True, type=float, help="In `endless`, run only this epsilon. May be repeated."
)
@click.option("--fresh", is_flag=True, help="Delete earlier results of these items first.")
@click.option(
    "--audit",
    type=click.Path(path_type=Path, dir_okay=False),
    help="For write-docs: also keep the results of this audit.json.",
)
@click.option("--so-far", is_flag=True, help="Run nothing. Report what is done so far.")
def reproduce_command(
    name: str, out: Path, quick: bool, jobs: int, fresh: bool, audit: Path | None, so_far: bool, **sought: Any
) -> None:
    """Reproduce tables and figures of the paper on your own features.

    NAME is one item, or one of these: `all`; `endless` (queries without end: goals of this package, not of the paper);
    `list` (shows the items and the data that each needs); `report` (draws the report of an earlier run again);
    `write-docs` (in a clone: keeps the results of an earlier run and writes them into the documents).

    Hyper-parameters are searched on validation queries. As in the paper, no budget covers that search, and the output
    says so.

    \b
    Examples:
      indknn reproduce list
      indknn reproduce all --quick
      indknn reproduce figure1a --data features --out out/reproduce
      indknn reproduce figure1a --data features --features r50
      indknn reproduce ablation --data features --set weights=equal --set T=400
      indknn reproduce figure2 --data mine.npz --method my_method.py
      indknn reproduce endless_figures --data visits.csv --schema visits.json
      indknn reproduce endless --data features --seeds 1 --epsilon 1
    """
    try:
        from indknn_lab.experiments.items import ITEMS  # noqa: PLC0415
        from indknn_lab.experiments.reproduce import choose, reproduce  # noqa: PLC0415
        from indknn_lab.experiments.setting import as_changes, find  # noqa: PLC0415
        from indknn_lab.plots.report import write_report  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise IndKNNError(f"reproducing needs {missing.name}: pip install 'indknn[lab]'") from None
    if name == "list":
        for item in ITEMS.values():
            click.echo(f"{item.name:<17}{item.title} (needs {', '.join(item.needs)})")
        return
    if name == "report":
        click.echo(f"Report: {write_report(out)}")
        return
    if name == "write-docs":
        _write_docs(out, audit)
        return
    items = choose(name)
    sought |= {"only": sought["only"] or None, "changed": as_changes(sought["changed"])}
    setting = find(quick=quick, made=out / "features", **sought)
    for notice in setting.notices:
        click.echo(f"Careful: {notice}.")
    with stages() as show:
        outcomes = reproduce(items, setting, out, show, jobs=jobs, fresh=fresh, so_far=so_far)
    _say(outcomes, quick)
    click.echo(f"Report: {write_report(out)}")
    broken = [outcome.name for outcome in outcomes if outcome.status == "failed" or outcome.broken]
    if broken:
        raise IndKNNError(f"could not be made: {', '.join(broken)}; the report says why")


def _say(outcomes: list[Outcome], quick: bool) -> None:
    from indknn_lab.experiments.methods.base import NOT_PAID_FOR  # noqa: PLC0415

    for outcome in outcomes:
        lacking = "; ".join(outcome.not_run)
        words = {"done": "done", "partly": f"partly; not run: {lacking}", "not run": f"not run: {lacking}"}
        click.echo(f"{outcome.name:<17}{words.get(outcome.status, lacking)}")
        for finding in () if quick else outcome.findings:
            good, bad = ("reached", "MISSED") if finding.by == "goal" else ("agrees", "DIFFERS")
            verdict = {True: good, False: bad, None: "undecided"}[finding.agrees]
            click.echo(f"    {verdict:<11}{finding.here}")
    click.echo(NOT_PAID_FOR)
    if quick:
        click.echo("This was a quick rehearsal on few records and queries: its numbers mean nothing.")


def _write_docs(out: Path, audit: Path | None) -> None:
    from indknn_lab.plots.documents import FOLDER, keep_audit, keep_run, write_documents  # noqa: PLC0415

    root = Path()
    if not (root / FOLDER).is_dir():
        raise IndKNNError(f"write-docs works in a clone of the project: there is no {FOLDER} here")
    if (out / "setting.json").is_file():
        keep_run(out, root)
    if audit is not None:
        keep_audit(audit, root)
    changed = ", ".join(map(str, write_documents(root)))
    click.echo(f"Written: {changed}" if changed else "The documents say what the results say.")

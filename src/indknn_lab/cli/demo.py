"""`indknn demo`: shows the whole idea on real data, in a minute. It needs no more than the product does."""

from __future__ import annotations

from pathlib import Path

import click

from indknn.cli.options import parameter_options, stages, wanted


@click.command("demo")
@click.option("--queries", default=1000, show_default=True, help="How many queries to answer.")
@parameter_options("epsilon")
@click.option("--tau", default=0.7, show_default=True, help="Algorithm 3: how similar a record must be to take part.")
@click.option("--sigma2", default=0.7, show_default=True, help="Algorithm 3: the noise on the votes.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("out/demo.html"),
    show_default=True,
    help="The file for the report, a page of HTML.",
)
@click.option(
    "--store", type=click.Path(path_type=Path, dir_okay=False), help="Only make a store of the same data, in this file."
)
def demo_command(queries: int, epsilon: float, tau: float, sigma2: float, out: Path, store: Path | None) -> None:
    """Train a shared model on Fashion-MNIST, answer queries, compare, show who paid what, forget a person.

    50,000 images play the private records, one per person. 10,000 others are public queries. tau and sigma2 are for
    the paper's Algorithm 3 (mode votes), which runs beside the default. Their defaults come from earlier experiments on
    this data. As in the paper, no budget covers that search. The noise is real, so every run differs a little.

    \b
    Examples:
      indknn demo
      indknn demo --store demo.store && indknn serve demo.store
    """
    if store is not None:
        with wanted("store"):
            from indknn_lab.demonstration.served import make_store  # noqa: PLC0415
        questions = make_store(store)
        click.echo(f"{store} is ready: indknn serve {store}\nQuestions to paste into the console: {questions}")
        return
    from indknn_lab.demonstration import compare  # noqa: PLC0415  (scikit-learn takes a second to load)

    click.echo(compare.promise(epsilon))
    with stages() as show:
        result = compare.run(queries=queries, epsilon=epsilon, tau=tau, sigma2=sigma2, progress=show)
    click.echo(compare.story(result))
    compare.write_report(result, out)
    click.echo(f"Report: {out}")

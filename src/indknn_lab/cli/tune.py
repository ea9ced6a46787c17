"""`indknn tune`: choose parameters on public data, which costs nothing."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from indknn.cli.options import FEATURES, JSON, LABEL, as_json, columns, parameter_options, stages
from indknn.core.calibrate import MANY_RECORDS
from indknn.settings import PARAMETERS
from indknn.tables.read import labelled
from indknn_lab.tuning import USUAL, Target, Tuning, possible, tune


@click.command("tune")
@click.argument("source", type=click.Path(path_type=Path), metavar="PUBLIC")
@click.option(
    "--n", type=click.IntRange(1), help="How many records the store will hold. Default: as many as PUBLIC has."
)
@parameter_options("epsilon", "delta", "max_queries", "accountant", "kernel", "bandwidth")
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(1), help="How many random splits of PUBLIC to try."
)
@LABEL
@FEATURES
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write the result to this file as JSON as well.")
@JSON
def tune_command(
    source: Path,
    label: str,
    features: str | None,
    out: Path | None,
    in_json: bool,
    seeds: int,
    n: int | None,
    **target: Any,
) -> None:
    """Choose tau, sigma2 and the mode, without leaking.

    PUBLIC is a labelled public set (npz with X and y, csv, parquet) that resembles the private one. Nothing is spent.
    The command prints the `indknn init` line for the best choice. See docs/tuning.md.

    \b
    Example:
      indknn tune public.npz --epsilon 1 --n 50000 --max-queries 2000
    """
    X, y = labelled(source, columns(label, "owner", features))
    aim = Target(n=n or len(X), **target)
    with stages() if not in_json else nullcontext(lambda *_: None) as show:
        tried = possible(USUAL, X.shape[1], aim.n)
        found = tune(X, y, aim, tried, seeds=seeds, progress=lambda done, total: show("runs", done, total))
    facts = {
        "spent": 0.0,
        "public_records": found.stand_in,
        "queries": found.queries,
        "differences_below_mean_little": found.error,
        "extrapolated": found.extrapolated(),
        "trials": [
            {
                **{name: getattr(trial.candidate, name) for name in ("mode", "share", "factor", "model_share")},
                **{"tau": trial.tau, "sigma2": trial.sigma2, "accuracy": trial.accuracy, "runs": trial.accuracies},
            }
            for trial in found.trials
        ],
        "init": init_line(found),
    }
    if out is not None:
        out.write_text(as_json(facts) + "\n")
    click.echo(as_json(facts) if in_json else _story(found))


def _story(found: Tuning) -> str:
    """What was tried, in plain words."""
    lines = [f"{'tried on public data':<44}{'tau':>8}{'sigma2':>8}{'accuracy':>10}  least to greatest"]
    for trial in found.trials:
        tau, sigma2 = ("auto" if value is None else f"{value:.3f}" for value in (trial.tau, trial.sigma2))
        spread = f"{min(trial.accuracies):.3f} to {max(trial.accuracies):.3f}"
        lines.append(f"{trial.candidate.describe():<44}{tau:>8}{sigma2:>8}{trial.accuracy:>10.3f}  {spread}")
    lines.append(f"Differences below {found.error:.3f} mean little.")
    lines += [f"Extrapolated: {note}." for note in found.extrapolated()]
    return "\n".join([*lines, "Nothing was spent: public data and seeded noise alone.", f"\n  {init_line(found)}"])


def init_line(found: Tuning) -> str:
    """The command that makes a store with the best parameters."""
    target, best = found.target, found.best
    values: dict[str, Any] = {"epsilon": target.epsilon, "delta": target.delta, "max_queries": target.max_queries}
    if best.candidate.mode == "votes":
        values |= {"max_queries": target.planned, "mode": "votes", "sigma2": best.sigma2}
    else:
        values |= {"mode": "model", "model_share": best.candidate.model_share}
        if target.n > MANY_RECORDS:
            values["expected_records"] = target.n
    others = {"tau": best.tau, **{name: getattr(target, name) for name in ("kernel", "bandwidth", "accountant")}}
    values |= {name: value for name, value in others.items() if value != PARAMETERS[name].default}
    words = [f"--{name.replace('_', '-')} {'none' if value is None else value}" for name, value in values.items()]
    return " ".join(["indknn init STORE", *words])

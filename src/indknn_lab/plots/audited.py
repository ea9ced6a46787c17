"""The results of an audit in Markdown: ten lines for a person who is responsible for privacy, then tables."""

from __future__ import annotations

from typing import Any


def audit_summary(summaries: dict[str, dict[str, Any]]) -> str:
    """The ten lines, in plain words."""
    if "audit" not in summaries:
        return "*Not run yet: `indknn audit --minutes 60`.*"
    a = summaries["audit"]
    rows, mutants, strongest = a["scenarios"], a["mutants"], a["strongest"]
    played = sum(row["trials"] for row in rows if row["path"].startswith("product"))
    imitated = sum(row["trials"] for row in rows) - played
    limit = "" if a["minutes"] is None else f" --minutes {a['minutes']:g}"
    held = all(row["holds"] for row in rows)
    verdict = "Passed" if a["passed"] else a["verdict"]
    missing = [*a.get("missing", ()), *a["left_out"]]
    lines = [
        f"**{verdict}.** We attacked our own software for {a['seconds'] / 60:.0f} "
        f"minutes, {a['worked'] / 60:.0f} of them at work on a shared machine "
        f"(`indknn audit{limit} --seed {a['seed']}`).",
        f"We played {len(rows)} histories with one person and without them: {played:,} times with the software itself, "
        f"{imitated:,} times with a faster copy that tests hold to it. An attacker who knows everybody else's data "
        "tried to tell the two apart.",
        "The software promises a limit to how well that can work: ε. "
        + ("No attack got beyond its limit." if held else "**Some attack got beyond its limit.**"),
        f"The strongest attack came to {strongest['share_of_claim']:.0%} of its limit ({strongest['scenario']}). Had "
        "the software given away much more than it promises, such an attack would have shown it.",
        f"We broke the software on purpose in {len(mutants)} ways, each a mistake that others have made or could make. "
        f"The audit noticed {sum(m['caught'] for m in mutants)} of them.",
        _membership(a["membership"]),
        _floats(a["floats"]),
        _timing(a["timing"]),
        "All of these limits hold together with 95% confidence. An audit can show that a promise is broken. It cannot "
        "prove that it is kept: that is done by the proofs in [privacy.md](privacy.md).",
        "There was no time for: " + "; ".join(missing) + "." if missing else "Nothing was left out.",
    ]
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))


def _membership(m: dict[str, Any] | None) -> str:
    if not m:
        return "Guessing who is in the data was not tried in this run."
    return (
        f"Guessing who is among {m['people']:,} unusual people: right in {m['auc']:.2f} of comparisons (0.5 is a blind "
        f"guess, the promise allows {m['bound_auc']:.2f}, without privacy it is {m['control_auc']:.2f})."
    )


def _floats(found: list[dict[str, Any]]) -> str:
    if not found:
        return "Attacks on rounding errors were not tried in this run."
    naive, ours = found
    return (
        f"Rounding errors of usual noise give away the secret in {naive['success']:.0%} of cases; of ours in "
        f"{ours['success']:.0%}, where {ours['allowed']:.0%} is what chance allows."
    )


def _timing(found: list[dict[str, Any]]) -> str:
    if not found:
        return "Timing attacks were not tried in this run."
    worst = max(found, key=lambda t: float(t["open_success"]))
    return (
        f"By the time of an answer alone an attacker was right in up to {worst['open_success']:.0%} of cases if "
        f"answers leave at once, and in {worst['paced_success']:.0%} if they are paced (`indknn serve --tick`). Time "
        "is outside the promise unless answers are paced."
    )


def audit_tables(summaries: dict[str, dict[str, Any]]) -> str:
    """Tables of every scenario and every mutant."""
    if "audit" not in summaries:
        return ""
    a = summaries["audit"]
    lines = ["| history | attacker sees | path | promised ε | proven by counting | by μ | share | trials |"]
    lines += ["| --- " * 8 + "|"]
    lines += [
        f"| {r['name']}: {r['about']} | {r['sees']} | {r['path']} | {r['claimed_epsilon']:.2f} | {r['epsilon']:.2f} | "
        f"{r['epsilon_gdp']:.2f} | {r['tightness']:.0%} | {r['trials']:,} |"
        for r in a["scenarios"]
    ]
    lines += ["", "| broken on purpose | what is wrong | noticed by |", "| --- | --- | --- |"]
    lines += [
        f"| {m['mutant']} | {m['wrong']} | {', '.join((*m['checks'], *m['probes'])) or '**nothing**'} |"
        for m in a["mutants"]
    ]
    limit = "" if a["minutes"] is None else f" of {60 * a['minutes']:.0f}"
    used = f"{a['seconds']:.0f} s{limit}, {a['worked']:.0f} s of the processor"
    about = f"Seed {a['seed']}, {used}, {a['machine']}."
    return "\n".join([*lines, "", f"{about} Each bound fails with a chance of at most {a['error_per_bound']:.1e}."])

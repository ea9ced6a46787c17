"""Attacks and statistical tests of the privacy guarantee. See ``docs/audits.md``.

    bounds          lower bounds on ε and μ from counted events, and for one run with many canaries
    patches         replaces parts of the product inside a `with`
    tap             records what the theorem covers in a run: counts, noisy votes, sums, labels
    worlds          neighbouring histories, adaptive scripts, and the privacy loss of a transcript
    scenarios       the histories that are audited
    simulate        many transcripts at once, checked against the product, for tight bounds
    measure         runs trials and computes bounds
    one_run         many canaries in one run (Steinke, Nasr & Jagielski 2023)
    served          the engine, a durable store and the server's worker behind one interface
    checks/         properties that need no statistics, tested through each of these interfaces
    mutants/        deliberately broken variants, all of which must be caught
    probes          small audits to catch mutants, and the verdict on each mutant
    attacks/        membership inference, floating point, timing
    allowance       the time that the audit was given, and what was left out
    runner, report  the whole audit, and its report as JSON and HTML

The product never imports anything from here.
"""

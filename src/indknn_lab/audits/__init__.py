"""Attacks and statistical tests of the promise. See ``docs/audits.md``.

    bounds          lower bounds on ε and μ from counted events, and for one run with many canaries
    patches         parts of the product replaced for the length of a `with`
    tap             what the theorem covers of a run: counts, noisy votes, sums, labels
    worlds          neighbouring histories, adaptive scripts, and the privacy loss of a transcript
    scenarios       the histories that are audited
    simulate        many transcripts at once, checked against the product, for tight bounds
    measure         trials in, bounds out
    one_run         many canaries in one run (Steinke, Nasr & Jagielski 2023)
    served          the engine, a durable store and the server's worker behind one face
    checks/         properties that no statistics is needed for, by each of these ways
    mutants/        deliberately broken variants, all of which must be caught
    probes          small audits to catch them, and the verdict on each mutant
    attacks/        membership inference, floating point, timing
    allowance       the minutes given, and what is left out
    runner, report  everything together; JSON and HTML

Nothing here is imported by what serves.
"""

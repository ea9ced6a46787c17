"""Attacks and statistical tests of the privacy guarantee. See ``docs/audits.md``.

    patches         replaces parts of the product inside a `with`
    tap             records what the theorem covers in a run: counts, noisy votes, sums, labels
    scenarios       neighbouring histories, adaptive scripts, the privacy loss of a transcript, and what is audited
    measure         lower bounds on ε and μ from trials, many at once where a simulation can
    served          the engine, a durable store and the server's worker behind one interface
    checks/         properties that need no statistics, tested through each of these interfaces
    mutants/        deliberately broken variants, all of which must be caught
    attacks         many canaries in one run, membership inference, floating point, timing
    runner, report  the whole audit, and its report as JSON and HTML

The product never imports anything from here.
"""

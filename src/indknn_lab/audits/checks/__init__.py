"""Checks of properties that need no statistics. Each check returns a text that says what is wrong, or None.

They test the code that is in place at that time: the product, which must pass all of them, or a mutant.
"""

from __future__ import annotations

from collections.abc import Callable

from indknn_lab.audits.checks import beside, budgets, mechanism, numbers, retention, serving, shared

Check = Callable[[], str | None]

_ALL: list[Check] = [
    *(serving.odometer, mechanism.scales, mechanism.same_path, mechanism.fresh_noise, mechanism.own_selection),
    *(mechanism.own_sums, mechanism.analysts_apart, mechanism.exact_books),
    *(serving.nothing_refunded, serving.global_budget, serving.repeats_stand, serving.durable_first),
    *(serving.gone_is_gone, serving.same_everywhere, shared.one_view, shared.house, shared.steps_last),
    *(shared.public_schedule, shared.first_rows),
    *(retention.expired_is_out, retention.held_is_out, retention.time_stays, retention.expiry_refunds_nothing),
    retention.quiet_expiry,
    *(beside.less_is_less, beside.paid_schema, beside.kept_values, beside.quiet_changes),
    *(budgets.own_promise, budgets.lowering_is_apart, budgets.paced_votes, budgets.periods_add_up),
    *(numbers.small_votes, numbers.bounds_hold, numbers.released_intervals),
]
CHECKS: dict[str, Check] = {check.__name__.replace("_", " "): check for check in _ALL}

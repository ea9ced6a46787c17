"""Checks of properties that need no statistics. Each check returns a text that says what is wrong, or None.

They test the code that is in place at that time: the product, which must pass all of them, or a mutant.
"""

from __future__ import annotations

from collections.abc import Callable

from indknn_lab.audits.checks import mechanism, serving, shared, stores

Check = Callable[[], str | None]

_ALL: list[Check] = [
    *(serving.odometer, mechanism.scales, mechanism.same_path, mechanism.fresh_noise, mechanism.own_selection),
    *(mechanism.own_sums, mechanism.analysts_apart, mechanism.exact_books),
    *(serving.nothing_refunded, serving.global_budget, serving.repeats_stand, serving.durable_first),
    *(serving.gone_is_gone, serving.same_everywhere, shared.one_view, shared.house, shared.steps_last),
    *(shared.public_schedule, shared.first_rows),
    *(stores.expired_is_out, stores.held_is_out, stores.time_stays, stores.expiry_refunds_nothing, stores.quiet_expiry),
    *(stores.less_is_less, stores.paid_schema, stores.kept_values, stores.quiet_changes),
    *(stores.own_promise, stores.lowering_is_apart, stores.paced_votes, stores.periods_add_up),
    *(stores.small_votes, stores.bounds_hold, stores.released_intervals),
]
CHECKS: dict[str, Check] = {check.__name__.replace("_", " "): check for check in _ALL}

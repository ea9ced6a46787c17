// The numbers: records and owners, answers, owners whose budget is spent, and how many queries are left.

import { find, make, tell } from "./dom.js";
import { count, figure, many, percent, stamp } from "./format.js";

export function mount(page) {
  const list = find("#numbers"), empty = find("#overview-empty");
  return {
    show() {
      const facts = page.status;
      if (!facts) return;
      tell(empty, emptiness(page.session, facts));
      list.replaceChildren(...numbers(facts).map(([term, value, note]) =>
        make("div", {}, make("dt", {}, term), make("dd", {}, make("strong", {}, value), " ", make("span", { class: "muted" }, note)))));
    },
  };
}

function emptiness(session, facts) {
  if (!session.n_features) return "This store is new. The first records set the number of features, and also the labels if none were given.";
  return facts.records === 0 ? "This store is empty. Until records are added, answers are only noise." : "";
}

const epsilon = ({ epsilon_so_far: value }) => (value === null ? "too large to compute" : figure(value));

// What expires when, in about these numbers. Empty if no record has a date.
function expiring(ahead) {
  const soon = ["day", "week", "month", "year"].filter((step) => ahead[step]).map((step) => `about ${count(ahead[step])} expire within a ${step}`);
  return [...soon, ...(ahead.held ? [`${many(ahead.held, "owner")} under a hold`] : [])].join(", ");
}

// What the largest ε is, in this period and over all, and when the next begins. One line if nothing is renewed.
function largest(facts) {
  const line = ({ one_analyst: one, together }) => [epsilon(one), `to one analyst; ${epsilon(together)} to all analysts together; at δ = ${figure(together.delta)}, filter ${together.filter}`];
  const { over_all_periods: all, time } = facts;
  if (!all) return [["Largest ε so far", ...line(facts)]];
  const [value, note] = line(facts);
  return [
    ["Largest ε, this period", value, `${note}; the next begins at ${stamp(time.next_begins)} UTC`],
    [`Largest ε, all ${many(all.begun, "period")} so far`, ...line(all)],
  ];
}

function numbers(facts) {
  const share = facts.owners > 0 ? facts.exhausted / facts.owners : 0;
  return [
    ["Records", count(facts.records), expiring(facts.retention)],
    ["Owners", count(facts.owners), `${count(facts.forgotten)} forgotten`],
    ["Answers", count(facts.answers), "repeats do not count"],
    ["Exhausted owners", count(facts.exhausted), facts.exhausted > 0 ? `${percent(share)} of owners; they no longer take part` : ""],
    ["Queries left, forecast", facts.forecast.words, facts.forecast.why],
    ...largest(facts),
  ];
}

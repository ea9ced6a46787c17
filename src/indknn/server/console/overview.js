// The numbers: records and owners, answers, owners whose budget is spent, and how many queries are left.

import { find, make, tell } from "./dom.js";
import { count, figure, percent } from "./format.js";

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

function numbers(facts) {
  const left = facts.forecast?.queries_left_for_median_owner;
  const share = facts.owners > 0 ? facts.exhausted / facts.owners : 0;
  return [
    ["Records", count(facts.records), ""],
    ["Owners", count(facts.owners), `${count(facts.forgotten)} forgotten`],
    ["Answers", count(facts.answers), "queries that were charged"],
    ["Exhausted owners", count(facts.exhausted), facts.exhausted > 0 ? `${percent(share)} of owners; they no longer take part` : ""],
    ["Queries left, forecast", left == null ? "not known yet" : left === 0 ? "none" : `about ${count(left)}`,
      left == null ? "the median owner has spent nothing" : "for the median owner, if all analysts continue as before"],
    ["Largest ε so far", epsilon(facts.one_analyst), `to one analyst; ${epsilon(facts.together)} to all analysts together; at δ = ${figure(facts.together.delta)}, filter ${facts.together.filter}`],
  ];
}

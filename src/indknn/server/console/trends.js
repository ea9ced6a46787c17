// Two charts: answers over time, and how much of their budgets owners have spent.

import { bars, chart, steps } from "./charts.js";
import { find, table, tell } from "./dom.js";
import { count, many, percent, stamp } from "./format.js";

const ROWS = 100; // the most rows in the table of answers, newest first

export function mountAnswers(page) {
  const panel = find("#answers"), show = chart(find(".chart", panel), steps);
  const tabulate = tables(panel);
  return {
    show() {
      const times = page.status?.answers_over_time;
      if (!times) return;
      find(".chart", panel).hidden = find("details", panel).hidden = times.length === 0;
      if (times.length === 0) return tell(find(".sentence", panel), "No query was answered yet.");
      let sum = 0;
      const points = times.map(({ at, answers }) => ({ at, time: Date.parse(at), sum: (sum += answers), answers }));
      const sentence = `${many(sum, "answer")} since ${stamp(points[0].at)}, the newest at ${stamp(points.at(-1).at)} (UTC).`;
      tell(find(".sentence", panel), sentence);
      show({ title: sentence, points });
      tabulate(["When (UTC)", "Answers", "In all"], points.slice(-ROWS).reverse().map((p) => [stamp(p.at), count(p.answers), count(p.sum)]));
    },
  };
}

export function mountSpent(page) {
  const panel = find("#spent"), show = chart(find(".chart", panel), bars);
  const tabulate = tables(panel);
  return {
    show() {
      const facts = page.status;
      if (!facts) return;
      const values = facts.spent_share_histogram;
      find(".chart", panel).hidden = find("details", panel).hidden = facts.owners === 0;
      if (facts.owners === 0) return tell(find(".sentence", panel), "There are no owners yet.");
      const sentence = `The median owner has spent ${percent(facts.spent_share_median)} of the budget in their most used ledger; `
        + `${many(facts.exhausted, "owner is", "owners are")} exhausted.`;
      tell(find(".sentence", panel), sentence);
      const labels = values.map((_, i) => `${(100 * i) / values.length} to ${(100 * (i + 1)) / values.length}%`);
      show({ title: `Owners by share of budget spent. ${sentence}`, values, labels, axis: "share of the budget spent; height: owners" });
      tabulate(["Share spent", "Owners"], values.map((value, i) => [labels[i], count(value)]));
    },
  };
}

// The table is replaced only when it differs, so that a selection or the reading position is not lost.
function tables(panel) {
  let shown = "";
  return (head, rows) => {
    const state = JSON.stringify(rows);
    if (state === shown) return;
    shown = state;
    find("details .scroll", panel).replaceChildren(table(head, rows));
  };
}

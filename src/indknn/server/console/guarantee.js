// The guarantee, in words that a privacy officer can rely on.

import { find, make, pairs } from "./dom.js";
import { count, figure, many, percent, percentUp, stamp } from "./format.js";

const FILTERS = {
  gdp: "gdp, Gaussian differential privacy: exact for this mechanism.",
  rdp: "rdp, Rényi differential privacy: the paper's filter, slightly stricter than necessary.",
};

const POOLING = "A limit for analysts who pool their answers. The bound is for each analyst separately.";
const NOT_PROMISED = [
  "That nothing is learned about people in general. What is true of many people can be learned with or without any one person.",
  "Protection from the operator, who has the records, or from anybody who can read the server's disk or memory.",
  "That queries stay secret. The store keeps every query with its answer.",
  "One budget for a person who has several names. Each name has a separate budget.",
];

export function mount(page) {
  const body = find("#guarantee-body");
  let shown = "";
  return {
    show() {
      const { guarantee: promise, time } = page.session;
      const state = JSON.stringify([promise, time]);
      if (state === shown) return;
      shown = state;
      body.replaceChildren(...(promise ? words(promise, time) : [make("p", {}, "The server did not send its guarantee.")]));
    },
  };
}

function words({ observer, epsilon, delta, filter, budget, words: said, periods }, time) {
  const more = observer === "one analyst" ? [POOLING] : [];
  return [
    make("p", { class: "lead" }, said),
    pairs([
      [`ε = ${figure(epsilon)}`, `bounds what the answers to ${observer} can reveal about one person. ${odds(epsilon, delta, filter, budget)}`],
      [`δ = ${figure(delta)}`, `is the chance, for each person, that this bound fails: ${inWords(delta)}.`],
      ["The filter", `counts what each owner has spent. It stops using their records before their budget is exceeded. It is ${FILTERS[filter] ?? filter}`],
      ...overTime(epsilon, periods, time),
    ], { class: "facts" }),
    make("h3", {}, "What it does not promise"),
    make("ul", {}, ...[...more, ...NOT_PROMISED].map((line) => make("li", {}, line))),
  ];
}

// How budgets depend on the clock. Empty if they do not.
function overTime(epsilon, periods, time) {
  if (!time) return [];
  const over = periods?.epsilon_over_all === null ? "too large to compute" : figure(periods?.epsilon_over_all ?? 0);
  return [
    ...(time.renew_days ? [[`Period ${count(time.period)}`, `of ${many(time.renew_days, "day")} each. In every period people's budgets start anew: ε = ${figure(epsilon)} in this one, ${over} over all ${many(periods.begun, "period")} so far. The next begins at ${stamp(time.next_begins)} UTC.`]] : []),
    ...(time.pace_days ? [["The pace", `Votes may have used ${percent(time.by_now)} of their part by now. It grows evenly over ${many(time.pace_days, "day")}.`]] : []),
  ];
}

const inWords = (chance) => `1 in ${count(Math.floor(1 / chance + 1e-6))}`;

// At even odds, the best guess is right with probability (1 + TV) / 2, where TV is the total variation distance.
// (ε, δ) alone gives TV <= (e^ε - 1 + 2δ) / (e^ε + 1). μ-GDP gives TV = 2Φ(μ/2) - 1 exactly, with μ = sqrt(2B).
function odds(epsilon, delta, filter, budget) {
  const plain = Math.min(1, (Math.exp(epsilon) + delta) / (1 + Math.exp(epsilon)));
  const exact = filter === "gdp" && budget > 0 ? normal(Math.sqrt(2 * budget) / 2) : plain;
  return "Suppose that somebody knows everything else, and without answers could only toss a coin to guess whether a person is in the data. "
    + `With all of these answers, they guess right at most ${percentUp(Math.min(plain, exact))} of the time.`;
}

// Φ by Abramowitz and Stegun 26.2.17. The error is below 1e-7, which is added.
function normal(x) {
  const t = 1 / (1 + 0.2316419 * x);
  const series = t * (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
  return 1 - Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI) * series + 1e-7;
}

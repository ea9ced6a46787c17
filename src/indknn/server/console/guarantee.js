// The guarantee, in words that an officer can hold somebody to.

import { find, make, pairs } from "./dom.js";
import { count, figure, percentUp } from "./format.js";

const FILTERS = {
  gdp: "gdp, Gaussian differential privacy: exact for this mechanism.",
  rdp: "rdp, Rényi differential privacy: the paper's, a little stricter than needed.",
};

const POOLING = "That analysts who pool their answers learn no more: the bound is for each analyst.";
const NOT_PROMISED = [
  "That nothing is learned about people in general: what is true of everybody shows with or without any one person.",
  "Anything against the operator, who holds the records, or against whoever reads the server's disk or memory.",
  "That the questions stay secret: the store keeps every query with its answer.",
  "Protection of a person who is here under several names: each name has a budget of its own.",
];

export function mount(page) {
  const body = find("#guarantee-body");
  let shown = "";
  return {
    show() {
      const promise = page.session.guarantee;
      const state = JSON.stringify(promise);
      if (state === shown) return;
      shown = state;
      body.replaceChildren(...(promise ? words(promise) : [make("p", {}, "The server did not say what it promises.")]));
    },
  };
}

function words({ observer, epsilon, delta, filter, budget, words: said }) {
  const more = observer === "one analyst" ? [POOLING] : [];
  return [
    make("p", { class: "lead" }, said),
    pairs([
      [`ε = ${figure(epsilon)}`, `bounds what answers to ${observer} tell about one person. ${odds(epsilon, delta, filter, budget)}`],
      [`δ = ${figure(delta)}`, `is the chance, for each person, that this bound fails: ${inWords(delta)}.`],
      ["The filter", `keeps each owner's account, and stops their records from taking part before the budget is overdrawn. It is ${FILTERS[filter] ?? filter}`],
    ], { class: "facts" }),
    make("h3", {}, "What it does not promise"),
    make("ul", {}, ...[...more, ...NOT_PROMISED].map((line) => make("li", {}, line))),
  ];
}

const inWords = (chance) => `1 in ${count(Math.floor(1 / chance + 1e-6))}`;

// The best guesser at even odds is right with chance (1 + TV) / 2. By (ε, δ) alone TV <= (e^ε - 1 + 2δ) / (e^ε + 1);
// μ-GDP gives TV = 2Φ(μ/2) - 1 exactly, with μ = sqrt(2B).
function odds(epsilon, delta, filter, budget) {
  const plain = Math.min(1, (Math.exp(epsilon) + delta) / (1 + Math.exp(epsilon)));
  const exact = filter === "gdp" && budget > 0 ? normal(Math.sqrt(2 * budget) / 2) : plain;
  return "Somebody who knows everything else, and would guess by a coin whether a person is here, is right at most "
    + `${percentUp(Math.min(plain, exact))} of the time after all of these answers.`;
}

// Φ by Abramowitz and Stegun 26.2.17; off by less than 1e-7, which is added.
function normal(x) {
  const t = 1 / (1 + 0.2316419 * x);
  const series = t * (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
  return 1 - Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI) * series + 1e-7;
}

// Try a query. It spends people's budget, so the page says so first. Asking again after a lost answer is free.

import { call } from "./api.js";
import { number } from "./csv.js";
import { busy, find, make, tell } from "./dom.js";
import { many } from "./format.js";

export function mount(page) {
  const panel = find("#query"), form = find("form", panel), button = find("button", form);
  const text = find("#query-text"), error = find("#query-error"), result = find("#query-result");
  let pending = null; // a request whose answer was lost; the same id gets the same answer and is charged once

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, ask);
  });
  text.addEventListener("input", () => tell(error, ""));

  async function ask() {
    tell(error, "");
    tell(result, "");
    let features;
    try {
      features = parse(text.value, page.session.n_features);
    } catch (problem) {
      tell(error, problem.message);
      text.focus();
      return;
    }
    const data = JSON.stringify(features);
    if (pending?.data !== data) pending = { id: newId(), data };
    const input = { name: "features", shape: [1, features.length], datatype: "FP64", data: features };
    tell(result, "Asking.");
    try {
      const path = `/v2/models/${encodeURIComponent(page.session.model)}/infer`;
      const answer = await call("POST", path, { id: pending.id, inputs: [input] });
      pending = null;
      const label = answer.outputs.find((output) => output.name === "label").data[0];
      result.replaceChildren("Label: ", make("strong", {}, label));
      page.refresh();
    } catch (failure) {
      tell(result, "");
      if (!failure.unsure) pending = null;
      tell(error, failure.unsure ? `${failure.message} Asking again with the same numbers is not charged twice.` : failure.message);
      page.failed(failure);
    }
  }

  return {
    show() {
      const { n_features: n } = page.session;
      tell(find("#query-hint"), n
        ? `${many(n, "number")}.`
        : "The store has never held records, so the number of features is not known yet.");
    },
  };
}

function parse(text, expected) {
  if (!expected) throw new Error("The store has never held records. Add some first.");
  const parts = text.trim().split(/[\s,;]+/).filter((part) => part !== "");
  const values = parts.map((part, i) => number(part, `place ${i + 1}`));
  if (values.length !== expected) {
    throw new Error(`A query must have ${many(expected, "number")}, got ${values.length}.`);
  }
  return values;
}

// Browsers have no randomUUID for pages that come over plain HTTP from another machine.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

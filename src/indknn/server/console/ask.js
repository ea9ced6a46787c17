// Ask one query in a form that follows from the schema, or many in a file. Asking spends people's budget, so the page
// says so first. Asking again after a lost answer is free.

import { askAll, present } from "./answers.js";
import { newId } from "./api.js";
import { parseQueries } from "./columns.js";
import { number, textOf } from "./csv.js";
import { busy, find, make, tell } from "./dom.js";
import { fieldOf } from "./fields.js";
import { count, many } from "./format.js";

const IGNORED = "ignored";
const NEVER = "The store has never held records. Add some first.";

// What a query consists of: the public facts about the model tell it.
function asked({ model, session }) {
  return {
    schema: model?.parameters.schema ?? null,
    takesTexts: model?.inputs[0]?.name === "text" && !model.parameters.schema,
    width: session.n_features,
  };
}

export function mountAsk(page) {
  const panel = find("#ask"), place = find(".fields", panel);
  let read = () => [], made = "";
  asker(page, panel, () => ({ rows: read(), ids: null }));

  return {
    show() {
      const state = JSON.stringify([page.session.n_features, page.model?.parameters.schema, page.model?.inputs]);
      if (state === made) return; // what was typed stays
      made = state;
      read = fill(place, asked(page));
    },
  };
}

// Fill the form. Returns a function that reads the rows from it.
function fill(place, { schema, takesTexts, width }) {
  if (schema) {
    const used = Object.entries(schema.columns).filter(([, about]) => (about.kind ?? about) !== IGNORED);
    const fields = used.map(([name, about], i) => fieldOf(name, about, `ask-field-${i}`));
    place.replaceChildren(...fields.map(({ node }) => node), make("p", { class: "hint whole" }, "Beyond its range, a number or a date counts as the nearest bound."));
    return () => [Object.fromEntries(fields.map((field) => [field.name, field.read()]))];
  }
  const text = make("textarea", { id: "ask-text", rows: 3, spellcheck: "false", "aria-describedby": "ask-hint ask-error" });
  const [label, hint] = takesTexts
    ? ["Text", ""]
    : ["Features: numbers separated by commas or spaces", width ? `${many(width, "number")}. More lines are more queries.` : "The store has never held records, so the number of features is not known yet."];
  place.replaceChildren(make("div", { class: "whole" }, make("label", { for: "ask-text" }, label), text, make("p", { class: "hint", id: "ask-hint" }, hint)));
  return () => {
    try {
      return takesTexts ? [words(text.value)] : lines(text.value, width);
    } catch (problem) {
      throw Object.assign(problem, { field: text });
    }
  };
}

function words(text) {
  if (text.trim() === "") throw new Error("Type a text.");
  return text;
}

function lines(text, width) {
  if (!width) throw new Error(NEVER);
  const parts = (line) => line.split(/[\s,;]+/).filter((part) => part !== "").map((part, i) => number(part, `place ${i + 1}`));
  const rows = text.split("\n").map(parts).filter((row) => row.length > 0);
  if (rows.length > 1 && rows.flat().length === width) return [rows.flat()]; // one query that was broken into lines
  const wrong = rows.find((row) => row.length !== width) ?? (rows.length === 0 ? [] : null);
  if (wrong) throw new Error(`A query must have ${many(width, "number")}, got ${count(wrong.length)}.`);
  return rows;
}

export function mountAskFile(page) {
  const panel = find("#ask-file"), text = find("textarea", panel), file = find("input", panel), error = find("#ask-file-error");
  asker(page, panel, () => {
    if (!page.session.n_features) throw new Error(NEVER);
    if (text.value.trim() === "") throw Object.assign(new Error("Choose a file, or paste its text."), { field: text });
    return parseQueries(text.value, asked(page));
  });
  text.addEventListener("input", () => tell(error, ""));
  file.addEventListener("change", async () => {
    tell(error, "");
    if (!file.files[0]) return;
    try {
      text.value = await textOf(file.files[0]);
    } catch (problem) {
      text.value = ""; // or the file before it would be asked
      tell(error, problem.message);
    }
  });
  return {
    show() {
      const { schema, takesTexts, width } = asked(page);
      const columns = schema ? "Columns are found by their names in the schema" : takesTexts ? "One column holds the texts" : `${many(width ?? 0, "column")} of numbers`;
      tell(find("#ask-file-hint"), `The first row has the names of the columns. ${columns}. `
        + `A column "${schema?.record_id ?? "id"}" comes back beside the answers. Labels and owners are left out.`);
    },
  };
}

// The form of a panel: read the queries, ask them, and show what the server says.
function asker(page, panel, read) {
  const form = find("form", panel), button = find("button", form), error = find(".error", form);
  const result = find(".result", panel), details = find(".details", panel);
  let pending = null; // a request whose answer was lost; the same id gets the same answer and is charged once

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, ask);
  });
  form.addEventListener("input", () => tell(error, ""));

  async function ask() {
    tell(error, "");
    tell(result, "");
    details.replaceChildren();
    let queries;
    try {
      queries = read();
    } catch (problem) {
      tell(error, problem.message);
      problem.field?.focus();
      return;
    }
    const { rows, ids } = queries, state = JSON.stringify(rows);
    if (pending?.state !== state) pending = { id: newId(), state };
    tell(result, "Asking.");
    try {
      const answers = await askAll(page, rows, pending.id, (done) => tell(result, `${count(done)} of ${many(rows.length, "query", "queries")} answered.`));
      pending = null;
      present(result, details, page, answers, ids);
      page.refresh();
    } catch (failure) {
      tell(result, "");
      const before = failure.done > 0 ? ` ${many(failure.done, "query", "queries")} before were answered; rows are counted from there.` : "";
      const again = failure.unsure || failure.done > 0 ? " Asking again with the same text is not charged twice." : "";
      tell(error, `${failure.message}${before}${again}`);
      page.failed(failure);
    }
  }
}

// Queries to the server and answers from it: in as many requests as the server needs, shown with their probabilities.

import { call } from "./api.js";
import { labelName } from "./columns.js";
import { csvOf } from "./csv.js";
import { draw, make, table, tell } from "./dom.js";
import { count, figure, many, percent } from "./format.js";

const AT_ONCE = 200; // queries in a request: short requests are read at once, and progress shows
const SHOWN = 20; // rows of a long answer that are shown; the file has all
const MOST_CLASSES = 12;
const OUTPUTS = [{ name: "label" }, { name: "probabilities" }];
const NUMBERS = [{ name: "label" }, { name: "intervals" }];
const ENDS = ["low", "high"]; // of an interval: nine of ten numbers are between them

// Labels and probabilities of all rows, or numbers and intervals, if there is a model yet that knows its errors. Each
// part has an id that follows from the whole's, so it is charged once.
export async function askAll(page, rows, id, progress) {
  const path = `/v2/models/${encodeURIComponent(page.session.model)}/infer`, most = Math.min(AT_ONCE, page.model.parameters.max_batch);
  const labels = [], likely = [];
  const offered = new Set(page.model.outputs.map(({ name }) => name));
  let outputs = (page.model.parameters.bounds ? NUMBERS : OUTPUTS).filter(({ name }) => offered.has(name));
  for (let start = 0; start < rows.length; start += most) {
    const part = rows.slice(start, start + most);
    let answer;
    try {
      answer = await call("POST", path, { id: `${id}/${start}`, ...inputs(page.model, part), outputs });
    } catch (failure) {
      if (outputs[1]?.name !== "intervals" || failure.kind !== "refused") throw Object.assign(failure, { done: start });
      outputs = NUMBERS.slice(0, 1); // the model is not trained yet; nobody was charged, because it is refused before
      start -= most;
      continue;
    }
    const [found, shares] = (outputs[1] ? outputs : OUTPUTS).map(({ name }) => answer.outputs.find((output) => output.name === name));
    const width = shares?.shape[1] ?? 0;
    labels.push(...found.data);
    found.data.forEach((_, i) => likely.push(shares?.data.slice(i * width, (i + 1) * width) ?? []));
    if (rows.length > most) progress(labels.length);
  }
  return { labels, likely };
}

function inputs(model, rows) {
  if (model.parameters.schema) return { rows };
  if (typeof rows[0] === "string") return { inputs: [{ name: "text", shape: [rows.length], datatype: "BYTES", data: rows }] };
  return { inputs: [{ name: "features", shape: [rows.length, rows[0].length], datatype: "FP64", data: rows.flat() }] };
}

export function present(result, details, page, { labels, likely }, ids) {
  const { bounds, classes, schema } = page.model.parameters, name = labelName(schema) ?? "label";
  const shown = bounds ? figure : String, columns = likely[0].length && bounds ? ENDS : classes.map((one) => `p_${one}`);
  if (labels.length === 1 && bounds) {
    result.replaceChildren(`${name}: `, make("strong", {}, shown(labels[0])));
    details.replaceChildren(make("p", {}, likely[0].length ? `90% of such numbers are from ${shown(likely[0][0])} to ${shown(likely[0][1])}.` : ""));
    return;
  }
  if (labels.length === 1) {
    result.replaceChildren(`${name}: `, make("strong", {}, labels[0]));
    details.replaceChildren(shares(classes.map((one, i) => [one, likely[0][i], percent(likely[0][i])])));
    return;
  }
  tell(result, `${many(labels.length, "query was", "queries were")} answered.`);
  const tally = classes.map((one) => [one, labels.filter((label) => label === one).length]);
  const head = [ids?.name ?? "row", name], sure = bounds ? columns : ["probability"];
  const first = labels.slice(0, SHOWN).map((label, i) => [ids?.values[i] ?? i, shown(label), ...(bounds ? likely[i].map(shown) : [percent(Math.max(...likely[i]))])]);
  const file = [[...head, ...columns], ...labels.map((label, i) => [ids?.values[i] ?? i, label, ...likely[i]])];
  details.replaceChildren(
    shares(tally.map(([one, n]) => [one, n / labels.length, count(n)])),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The answers" }, table([...head, ...sure], first)),
    make("p", {}, labels.length > SHOWN ? `The first ${SHOWN} are shown. ` : "", download("answers.csv", "text/csv", [csvOf(file)], "Download the answers")),
  );
}

// A link to a file that the page has made. It is forgotten with the page.
function download(file, type, parts, text) {
  return make("a", { href: URL.createObjectURL(new Blob(parts, { type })), download: file }, text);
}

// Names with bars, the longest first. The words beside a bar say the same, so the bar itself is not read out.
function shares(list) {
  const sorted = list.sort((a, b) => b[1] - a[1]), rest = sorted.length - MOST_CLASSES;
  const rows = sorted.slice(0, MOST_CLASSES).map(([name, share, words]) => make("li", {},
    make("span", {}, name), bar(share), make("span", { class: "muted" }, words)));
  if (rest > 0) rows.push(make("li", { class: "muted" }, `and ${many(rest, "more", "more")}`));
  return make("ul", { class: "shares" }, ...rows);
}

function bar(share) {
  return draw("svg", { class: "share", "aria-hidden": "true" }, draw("rect", { class: "ink", width: `${100 * share}%`, height: "100%" }));
}

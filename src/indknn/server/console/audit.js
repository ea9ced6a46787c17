// The audit trail, newest first, a page at a time.

import { call } from "./api.js";
import { busy, find, make, tell } from "./dom.js";
import { count, figure, many, short, stamp } from "./format.js";

const PAGE = 20;

export function mount(page) {
  const rows = find("#audit-rows"), newer = find("#audit-newer"), older = find("#audit-older");
  const error = find("#audit-error"), result = find("#audit-result"), link = find("#audit-link");
  let last = 0;      // position of the newest entry
  let top = null;    // position at the top of the page that is read; null follows the newest
  let shown = "";

  newer.addEventListener("click", () => turn(newer, top === null || top + PAGE >= last ? null : top + PAGE));
  older.addEventListener("click", () => turn(older, Math.max(1, (top ?? last) - PAGE)));

  function turn(button, place) {
    if (button.getAttribute("aria-disabled") === "true") return;
    top = place;
    busy(button, () => load().catch((failure) => { tell(error, failure.message); page.failed(failure); }));
  }

  async function load() {
    if (top === null) ({ last } = await call("GET", "/v1/audit?limit=1"));
    const end = top ?? last;
    const after = Math.max(0, end - PAGE);
    const { entries } = await call("GET", `/v1/audit?after=${after}&limit=${end - after}`);
    if (end !== (top ?? last)) return; // another page was asked for meanwhile, and must not be painted over
    tell(error, "");
    paint([...entries].reverse());
  }

  find("#audit-verify").addEventListener("click", (event) => busy(event.currentTarget, () => attempt(verify)));
  find("#audit-export").addEventListener("click", (event) => busy(event.currentTarget, () => attempt(download)));

  async function attempt(work) {
    tell(error, "");
    tell(result, "");
    try {
      await work();
    } catch (failure) {
      tell(error, failure.message);
      page.failed(failure);
    }
  }

  async function verify() {
    const { ok, problems, entries } = await call("POST", "/v1/verify");
    if (ok) tell(result, `No problems found in ${many(entries, "entry", "entries")} of the trail, the answers, the budgets and the records.`);
    else tell(error, `Problems found: ${problems.join("; ")}.`);
  }

  // Page by page, one entry per line, and at the end the signed head. So `indknn check` can check the file alone.
  async function download() {
    const lines = [];
    let length = 0;
    for (let next = 0; next !== null;) {
      const part = await call("GET", `/v1/audit?after=${next}&limit=1000`);
      length += part.entries.length;
      lines.push(...[...part.entries, ...(part.head ? [part.head] : [])].map((line) => `${JSON.stringify(line)}\n`));
      next = part.next;
    }
    if (link.href) URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
    link.download = "audit.jsonl";
    link.click();
    tell(result, `Downloaded ${many(length, "entry", "entries")} as audit.jsonl.`);
  }

  function paint(entries) {
    const state = JSON.stringify([entries, last]);
    if (state === shown) return;
    shown = state;
    rows.replaceChildren(...entries.map(row));
    const first = entries[0]?.position ?? 0, bottom = entries.at(-1)?.position ?? 0;
    tell(find("#audit-range"), `Entries ${count(first)} to ${count(bottom)} of ${count(last)}.`);
    // Not `disabled`, because keyboard users would lose the focus.
    newer.setAttribute("aria-disabled", top === null);
    older.setAttribute("aria-disabled", bottom <= 1);
    if (top === null && entries[0]) {
      find("#audit-newest").replaceChildren(`Newest hash, entry ${count(first)}: `, make("code", { class: "hash" }, entries[0].hash));
    }
  }

  return { load };
}

function row(entry) {
  const hash = make("code", { title: entry.hash, "aria-label": `hash ${entry.hash}` }, short(entry.hash));
  return make("tr", { role: "row" }, ...[count(entry.position), words(entry), stamp(entry.at), hash].map((cell) => make("td", { role: "cell" }, cell)));
}

// Releases are numbered, answers and steps of training alike.
function released({ first, last, count: all, sums = 0 }) {
  const done = [];
  if (sums > 0) done.push(`Trained the shared model (${many(sums, "release")}).`);
  if (all > sums) done.push(`Answered ${many(all - sums, "query", "queries")}.`);
  return `${done.join(" ")} ${first === last ? `Release ${count(first)}` : `Releases ${count(first)} to ${count(last)}`}.`;
}

function words({ kind, body }) {
  const facts = typeof body === "string" ? JSON.parse(body) : body;
  switch (kind) {
    case "init": return "Store made.";
    case "signing": return "Made a new key for signatures.";
    case "settings": return `First records: ${many(facts.n_features, "feature")}${facts.classes.length ? `, labels ${facts.classes.join(", ")}` : ""}.`;
    case "add": return `Added ${many(facts.records, "record")}.`;
    case "forget": return `Forgot ${many(facts.owners, "owner")}, erased ${many(facts.records, "record")}.`;
    case "expire": return `${many(facts.records, "record")} expired and were erased, with all that ${many(facts.owners, "owner")} had.`;
    case "keep": return `Kept the bytes of ${many(facts.records, "record")} because of a legal hold. They take no further part.`;
    case "hold": return `Put ${many(facts.owners, "owner")} under a legal hold.`;
    case "release": return `Ended the legal hold on ${many(facts.owners, "owner")}.`;
    case "lower": return `Lowered the promise to ${many(facts.owners, "owner")}.`;
    case "renew": return `A new period began: number ${count(facts.period)}.`;
    case "rewrite": return "Rewrote the database, so that erased bytes are gone.";
    case "answers": return released(facts);
    case "public": return `Declared ${many(facts.rows, "public row")} that the shared model may use.`;
    case "publish": return "Exported the shared model, so that it may be published.";
    case "purge": return "Purged all answers and the shared model. Everybody who asks again can see it.";
    case "analyst": return `Declared an analyst: ${many(facts.analysts, "analyst")} in all.`;
    case "budget": return `Limited an analyst to ε = ${figure(facts.epsilon)}${facts.was === null ? "" : ` (${figure(facts.was)} before)`}.`;
    case "keys": return "First key made.";
    case "undone": return "A change was undone. Bytes of it stay in the database until a rewrite.";
    case "prune": return `Deleted the ids of ${many(facts.requests, "old request")}.`;
    case "repeats": return `Repeated ${many(facts.requests, "request")}, at no charge.`;
    case "fold": return "Added earlier charges to the balances.";
    case "witness": return "A witness was used for the first time.";
    default: return `${kind} ${JSON.stringify(facts)}`;
  }
}

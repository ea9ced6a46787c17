// The page: who is signed in, which tasks they see, which of them is open, and regular refreshes.

import { call } from "./api.js";
import { mountAsk, mountAskFile } from "./ask.js";
import { mount as audit } from "./audit.js";
import { busy, find, make, tell } from "./dom.js";
import { clock } from "./format.js";
import { mount as guarantee } from "./guarantee.js";
import { mount as holds } from "./holds.js";
import { mount as keys, mountAnalysts } from "./keys.js";
import { mount as overview } from "./overview.js";
import { mount as owner } from "./owner.js";
import { mount as purge } from "./purge.js";
import { mount as records } from "./records.js";
import { mountSignIn } from "./signin.js";
import { mountAnswers, mountSpent } from "./trends.js";

const EVERY = 10_000; // ms between refreshes, while the page is visible

const page = {
  session: null,
  model: null, // the public facts about the model, with its schema
  status: null,
  may: (what) => page.session?.can.includes(what) ?? false,
  refresh,
  failed,
};

// Each task has an address: #ask, #people. What is in it stands in index.html, by `data-page`.
const TASKS = {
  overview: { title: "Overview", panels: [overview, mountAnswers, mountSpent, guarantee] },
  ask: { title: "Ask", panels: [mountAsk, mountAskFile] },
  people: { title: "People", panels: [owner, holds] },
  analysts: { title: "Analysts and keys", panels: [mountAnalysts, keys] },
  records: { title: "Records", panels: [records, purge] },
  audit: { title: "Audit", panels: [audit] },
};
for (const task of Object.values(TASKS)) task.panels = task.panels.map((mount) => mount(page));
const sections = [...document.querySelectorAll("#panels > section")];
const signIn = mountSignIn(enter);
let updated = null, running = null;

// Without keys, the server lets in everybody on this machine. Otherwise it needs a key, and the field is shown.
async function boot() {
  try {
    const { needs_key: closed } = await call("GET", "/v1/sign-in");
    tell(find("#banner"), "");
    if (closed) signIn.open("");
    else await enter(await call("GET", "/v1/session"));
  } catch (failure) {
    if (failure.kind === "key") { // the first key was made just now
      tell(find("#banner"), "");
      signIn.open("");
    } else {
      tell(find("#banner"), `${failure.message} Trying again every ${EVERY / 1000} seconds.`);
    }
  }
  find("#loading").hidden = page.session !== null || signIn.isOpen();
}

async function enter(session, moveFocus = false) {
  page.session = session;
  arrange();
  find("#panels").hidden = find("#session-actions").hidden = find("#nav").hidden = false;
  find("#sign-out").hidden = session.open;
  if (moveFocus) focusHeading();
  await refresh();
}

const allowed = (section) => section.dataset.needs === undefined || page.may(section.dataset.needs);

// The task that is open: that of the address if the key allows it. An owner comes for their own statement.
function current() {
  const open = [...new Set(sections.filter(allowed).map((section) => section.dataset.page))];
  const wanted = location.hash.slice(1);
  if (open.includes(wanted)) return wanted;
  return page.session.owner ? "people" : open[0];
}

function arrange() {
  const { session } = page, task = current();
  tell(find("#model"), `model ${session.model}`);
  tell(find("#who"), session.open ? "Open: no keys are set, so everybody on this machine may do everything." : `${session.name}, ${session.role}`);
  document.title = `${TASKS[task].title} · indknn console`;
  for (const section of sections) section.hidden = section.dataset.page !== task || !allowed(section);
  const links = Object.keys(TASKS).filter((id) => sections.some((section) => section.dataset.page === id && allowed(section)));
  const list = find("#nav ul"), state = JSON.stringify([links, page.may("keys")]);
  if (list.dataset.state !== state) { // else the focus on a link would be lost at every refresh
    list.dataset.state = state;
    list.replaceChildren(...links.map((id) => make("li", {}, make("a", { href: `#${id}` }, id === "analysts" && !page.may("keys") ? "Analysts" : TASKS[id].title))));
  }
  for (const link of list.querySelectorAll("a")) {
    if (link.hash === `#${task}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function focusHeading() {
  find("h2", sections.find((section) => !section.hidden)).focus({ preventScroll: true });
  scrollTo(0, 0);
}

// One refresh at a time. A call during a refresh waits for it, and then gets a new one.
async function refresh() {
  while (running) await running;
  running = fetchAll().finally(() => { running = null; });
  await running;
}

// Only what the open task shows is asked for.
async function fetchAll() {
  try {
    const { session: before } = page;
    page.session = await call("GET", "/v1/session");
    if (page.model === null || before.n_features !== page.session.n_features) {
      page.model = await call("GET", `/v2/models/${encodeURIComponent(page.session.model)}`);
    }
    arrange();
    const task = current();
    if (task === "overview" && page.may("status")) page.status = await call("GET", "/v1/status");
    for (const panel of TASKS[task].panels) {
      panel.show?.();
      await panel.load?.();
    }
    updated = new Date();
    tell(find("#updated"), `Updated ${clock(updated)}`);
    if (!find("#banner").hidden) tell(find("#news"), "The server answers again.");
    tell(find("#banner"), "");
  } catch (failure) {
    if (!failure.kind) throw failure; // a bug in this page, which no message would explain
    failed(failure);
    if (failure.kind !== "key") tell(find("#banner"), stale(failure));
  }
}

function stale(failure) {
  const from = updated ? ` What is shown is from ${clock(updated)}.` : "";
  return `${failure.message}${from} Trying again every ${EVERY / 1000} seconds.`;
}

// Typed text stays, so that work can continue after signing in with a new key. Signing out deletes everything.
function failed(failure) {
  if (failure.kind !== "key" || page.session === null) return;
  page.session = page.status = page.model = null;
  find("#panels").hidden = find("#session-actions").hidden = find("#nav").hidden = true;
  tell(find("#model"), "");
  tell(find("#who"), "");
  tell(find("#banner"), "");
  signIn.open("Your key is no longer accepted. Sign in again.");
}

function tick() {
  if (document.hidden || running) return;
  if (page.session) refresh();
  else if (!signIn.isOpen()) boot();
}

addEventListener("hashchange", () => {
  if (!page.session) return;
  arrange();
  focusHeading();
  refresh();
});
find(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the tasks
  find("#main").focus();
});
find("#refresh").addEventListener("click", () => busy(find("#refresh"), refresh));
find("#sign-out").addEventListener("click", () => location.reload()); // this clears the memory, with the key
document.addEventListener("visibilitychange", tick);
setInterval(tick, EVERY);
boot();

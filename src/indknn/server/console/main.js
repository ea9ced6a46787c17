// The page: who is signed in, which panels they see, and regular refreshes.

import { call } from "./api.js";
import { mount as audit } from "./audit.js";
import { busy, find, make, tell } from "./dom.js";
import { clock } from "./format.js";
import { mount as guarantee } from "./guarantee.js";
import { mount as keys, mountAnalysts } from "./keys.js";
import { mount as overview } from "./overview.js";
import { mount as owner } from "./owner.js";
import { mount as purge } from "./purge.js";
import { mount as query } from "./query.js";
import { mount as records } from "./records.js";
import { mountSignIn } from "./signin.js";
import { mountAnswers, mountSpent } from "./trends.js";

const EVERY = 10_000; // ms between refreshes, while the page is visible

const page = {
  session: null,
  status: null,
  may: (what) => page.session?.can.includes(what) ?? false,
  refresh,
  failed,
};

const trail = audit(page), loading = [mountAnalysts(page), keys(page)];
const panels = [guarantee, overview, mountAnswers, mountSpent, query, owner, records, purge].map((mount) => mount(page));
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

async function enter(session) {
  page.session = session;
  arrange();
  find("#panels").hidden = find("#session-actions").hidden = find("#nav").hidden = false;
  find("#sign-out").hidden = session.open;
  await refresh();
}

function arrange() {
  const { session } = page;
  tell(find("#model"), `model ${session.model}`);
  tell(find("#who"), session.open ? "Open: no keys are set, so everybody on this machine may do everything." : `${session.name}, ${session.role}`);
  const links = [];
  for (const section of document.querySelectorAll("#panels > section")) {
    section.hidden = section.dataset.needs !== undefined && !page.may(section.dataset.needs);
    if (!section.hidden) links.push([section.id, section.dataset.title]);
  }
  const list = find("#nav ul"), state = JSON.stringify(links);
  if (list.dataset.state === state) return; // else the focus on a link would be lost at every refresh
  list.dataset.state = state;
  list.replaceChildren(...links.map(([id, title]) => make("li", {}, make("a", { href: `#${id}` }, title))));
}

// One refresh at a time. A call during a refresh waits for it, and then gets a new one.
async function refresh() {
  while (running) await running;
  running = fetchAll().finally(() => { running = null; });
  await running;
}

async function fetchAll() {
  try {
    page.session = await call("GET", "/v1/session");
    if (page.may("status")) page.status = await call("GET", "/v1/status");
    arrange();
    for (const panel of panels) panel.show?.();
    if (page.may("audit")) await trail.load();
    for (const panel of loading) await panel.load();
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
  page.session = page.status = null;
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

find("#refresh").addEventListener("click", () => busy(find("#refresh"), refresh));
find("#sign-out").addEventListener("click", () => location.reload()); // this clears the memory, with the key
document.addEventListener("visibilitychange", tick);
setInterval(tick, EVERY);
boot();

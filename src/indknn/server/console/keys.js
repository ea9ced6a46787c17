// Keys and their users: make, rotate and revoke keys. A new key is shown once, and this page keeps no copy.

import { call } from "./api.js";
import { busy, find, make, tell } from "./dom.js";
import { count, figure, stamp } from "./format.js";

const NUMBERS = { rate: "Queries per second", max_queries: "Queries in all", epsilon: "ε" };

export function mount(page) {
  const form = find("#keys form"), rows = find("#keys-rows"), error = find("#keys-error"), fresh = find("#keys-new");
  const fields = ["role", "name", "owner", "rate", "max_queries", "epsilon"].map((name) => [name, find(`[name="${name}"]`, form)]);
  const role = find("[name=role]", form), ownerField = find("#key-owner-field");
  let shown = "";

  role.addEventListener("change", () => { ownerField.hidden = role.value !== "owner"; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(find("button", form), create);
  });
  find("#keys-hide").addEventListener("click", hide);

  async function create() {
    const body = {};
    for (const [name, field] of fields) {
      const text = field.value.trim();
      if (text === "" || (name === "owner" && role.value !== "owner")) continue;
      const number = NUMBERS[name];
      if (number && !/^[0-9.]+$/.test(text)) {
        tell(error, `${number} must be a number, or empty.`);
        field.focus();
        return;
      }
      body[name] = number ? Number(text) : field.value;
    }
    await attempt("POST", "/v1/keys", body, () => { for (const [name, field] of fields) if (name !== "role") field.value = ""; });
  }

  // A key is shown until the user hides it. Looking at other panels must not lose it.
  async function attempt(method, path, body, done) {
    tell(error, "");
    try {
      const key = await call(method, path, body);
      done?.();
      if (key.key) {
        tell(find("#keys-words"), `The key of ${key.name}, ${key.role}. It is shown only once. Copy it now.`);
        find("#keys-text").textContent = key.key;
        fresh.hidden = false;
        find("#keys-hide").focus();
      }
      await load();
      page.refresh();
    } catch (failure) {
      tell(error, failure.unsure ? `${failure.message} It is not known whether it was done. Look at the list.` : failure.message);
      page.failed(failure);
    }
  }

  function hide() {
    find("#keys-text").textContent = "";
    fresh.hidden = true;
    find("#keys-title").focus();
  }

  async function load() {
    if (!page.may("keys")) return;
    const { keys } = await call("GET", "/v1/keys");
    const state = JSON.stringify(keys);
    if (state === shown) return; // otherwise every refresh would take the focus from a button
    shown = state;
    rows.replaceChildren(...keys.sort((a, b) => Boolean(a.revoked) - Boolean(b.revoked)).map(row));
  }

  function row(key) {
    const state = key.revoked ? `revoked ${stamp(key.revoked)}` : `made ${stamp(key.created)}`;
    const cells = [key.name, key.owner ? `${key.role} ${key.owner}` : key.role, limits(key), state].map((text) => make("td", { role: "cell" }, text));
    const actions = make("td", { role: "cell" });
    if (!key.revoked) actions.append(action(key, "Rotate", "POST", "/rotate"), " ", action(key, "Revoke", "DELETE", ""));
    return make("tr", { role: "row" }, ...cells, actions);
  }

  // The first press asks, the second does it.
  function action(key, word, method, end) {
    const button = make("button", { type: "button", class: "quiet", "aria-label": `${word} the key ${key.id} of ${key.name}` }, word);
    button.addEventListener("click", () => {
      if (button.dataset.asked) return busy(button, () => attempt(method, `/v1/keys/${encodeURIComponent(key.id)}${end}`));
      button.dataset.asked = "yes";
      button.classList.replace("quiet", "danger");
      button.textContent = `${word}?`;
      button.setAttribute("aria-label", `Really ${word.toLowerCase()} the key ${key.id} of ${key.name}`);
    });
    return button;
  }

  return { load };
}

function limits({ rate, max_queries: most, epsilon }) {
  const words = [];
  if (rate !== null) words.push(`${rate} a second`);
  if (most !== null) words.push(`${count(most)} in all`);
  if (epsilon !== null) words.push(`ε = ${figure(epsilon)}`);
  return words.join(", ") || "no limits";
}

// What each analyst has used.
export function mountAnalysts(page) {
  const rows = find("#analysts-rows");
  async function load() {
    if (!page.may("status")) return;
    const { analysts } = await call("GET", "/v1/analysts");
    rows.replaceChildren(...analysts.map(({ name, answers, keys, queries_left: left, epsilon }) => make("tr", { role: "row" },
      ...[name ?? "without a name", count(answers), count(keys), left === null ? "no limit" : count(left), figure(epsilon)].map((text) => make("td", { role: "cell" }, text)))));
    tell(find("#analysts-none"), analysts.length === 0 ? "No analyst has a key, and nobody has asked yet." : "");
  }
  return { load };
}

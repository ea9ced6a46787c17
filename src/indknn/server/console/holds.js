// Legal holds: who is under one, place one, and end one. Only a curator sees them.

import { call } from "./api.js";
import { busy, find, make, tell } from "./dom.js";
import { many } from "./format.js";

export function mount(page) {
  const form = find("#holds form"), name = find("#hold-name"), error = find("#holds-error"), result = find("#holds-result");
  const rows = find("#holds-rows");
  let shown = "";

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(find("button", form), place);
  });

  async function place() {
    const owner = name.value;
    if (owner === "") {
      tell(error, "Type the name of an owner.");
      name.focus();
      return;
    }
    await attempt("POST", owner, () => { name.value = ""; return `${owner} is under a hold: their records take no part, and nothing erases them.`; });
  }

  async function attempt(method, owner, done) {
    tell(error, "");
    tell(result, "");
    try {
      const answer = await call(method, "/v1/holds", { owners: [owner] });
      tell(result, done(answer));
      await load();
    } catch (failure) {
      tell(error, failure.unsure ? `${failure.message} It is not known whether it was done. Look at the list.` : failure.message);
      page.failed(failure);
    }
  }

  async function load() {
    if (!page.may("curate")) return;
    const { owners } = await call("GET", "/v1/holds");
    const state = JSON.stringify(owners);
    if (state === shown) return; // otherwise every refresh would take the focus from a button
    shown = state;
    tell(find("#holds-none"), owners.length === 0 ? "Nobody is under a hold." : "");
    rows.replaceChildren(...owners.map((owner) => make("li", {}, owner, " ", lift(owner))));
  }

  // The first press asks, the second does it.
  function lift(owner) {
    const button = make("button", { type: "button", class: "quiet", "aria-label": `End the hold on ${owner}` }, "End");
    button.addEventListener("click", () => {
      if (button.dataset.asked) {
        return busy(button, () => attempt("DELETE", owner, (paper) =>
          `The hold on ${owner} has ended.${paper.records ? ` Erased ${many(paper.records, "record")} that were due meanwhile.` : ""}`));
      }
      button.dataset.asked = "yes";
      button.classList.replace("quiet", "danger");
      button.textContent = "End?";
      button.setAttribute("aria-label", `Really end the hold on ${owner}`);
    });
    return button;
  }

  return { load };
}

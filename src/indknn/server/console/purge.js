// Purge what was released. It is a public event, so the page says what others can notice and asks to type a word.

import { call } from "./api.js";
import { busy, find, tell } from "./dom.js";
import { stamp } from "./format.js";

export function mount(page) {
  const form = find("#purge form"), word = find("#purge-word"), button = find("button", form);
  const error = find("#purge-error"), result = find("#purge-result");

  word.addEventListener("input", () => { button.disabled = word.value !== "purge"; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!button.disabled) busy(button, purge);
  });

  async function purge() {
    tell(error, "");
    tell(result, "");
    try {
      const paper = await call("POST", "/v1/purge");
      word.value = "";
      button.disabled = true;
      tell(result, `Purged at ${stamp(paper.at)} UTC: ${paper.public}.`);
      page.refresh();
    } catch (failure) {
      tell(error, failure.unsure ? `${failure.message} It is not known whether it was done. Look at the audit trail.` : failure.message);
      page.failed(failure);
    }
  }

  return {};
}

// The field for the key.

import { call, setKey } from "./api.js";
import { busy, find, tell } from "./dom.js";

export function mountSignIn(enter) {
  const panel = find("#sign-in"), field = find("#key"), error = find("#sign-in-error"), form = find("form", panel);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(find("button", form), submit);
  });

  async function submit() {
    tell(error, "");
    const key = field.value.trim();
    if (!/^[\x21-\x7e]+$/.test(key)) { // other characters are not allowed in a header
      tell(error, key === "" ? "Type or paste a key." : "This cannot be a key: it has spaces or special characters in it.");
      field.focus();
      return;
    }
    setKey(key);
    let session;
    try {
      session = await call("GET", "/v1/session");
    } catch (failure) {
      setKey(null);
      tell(error, failure.message);
      field.focus();
      return;
    }
    field.value = "";
    panel.hidden = true;
    await enter(session, true); // the field that had the focus is gone
  }

  return {
    isOpen: () => !panel.hidden,
    open(reason) {
      setKey(null);
      panel.hidden = false;
      find("#loading").hidden = true;
      tell(error, reason);
      find("#key").focus();
    },
  };
}

// Add records. The text stays until the server has accepted it, so that an error loses no work.

import { call } from "./api.js";
import { parseRecords } from "./csv.js";
import { busy, find, tell } from "./dom.js";
import { count, many } from "./format.js";

const LARGEST = 2_000_000; // characters; a text field is slow above this, and the command line is better

export function mount(page) {
  const form = find("#records form"), button = find("button", form);
  const text = find("#records-text"), file = find("#records-file");
  const preview = find("#records-preview"), error = find("#records-error"), result = find("#records-result");
  let records = null;

  text.addEventListener("input", () => { tell(result, ""); read(); });
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    tell(result, "");
    if (chosen.size > LARGEST) {
      tell(error, `${chosen.name} is too large for this page. Add it on the server with: indknn add.`);
      return;
    }
    text.value = await chosen.text();
    read();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(button, add);
  });

  function read() {
    records = null;
    tell(error, "");
    tell(preview, "");
    if (text.value.trim() !== "") {
      try {
        const found = parseRecords(text.value, page.session.classes ?? []);
        tell(preview, describe(found));
        records = found;
      } catch (problem) {
        tell(error, problem.message);
      }
    }
    button.disabled = !records?.length;
  }

  async function add() {
    if (!records) return;
    tell(error, "");
    tell(result, "Adding.");
    try {
      const answer = await call("POST", "/v1/records", { records });
      const now = `The store now holds ${count(answer.records)} of ${many(answer.owners, "owner")}.`;
      tell(result, [`Added ${many(answer.ids.length, "record")}.`, now, ...answer.warnings.map((line) => `Note: ${line}.`)].join(" "));
      text.value = "";
      file.value = "";
      text.focus(); // the button will be disabled and would lose the focus
      read();
      page.refresh();
    } catch (failure) {
      tell(result, "");
      tell(error, failure.unsure
        ? `${failure.message} It is not known whether the records were added. Look at the audit trail before sending them again.`
        : failure.message);
      page.failed(failure);
    }
  }

  return {};
}

function describe(records) {
  // Owners are never guessed. A row without a name could belong to a person who has records already.
  const nameless = records.filter((record) => record.owner === undefined && record.id === undefined).length;
  if (nameless > 0) throw new Error(`${many(nameless, "record names no owner", "records name no owner")}. Add a column "owner".`);
  const owners = records.map((record) => record.owner ?? `record ${record.id}`);
  const widths = new Set(records.map((record) => record.features.length));
  const labels = [...new Set(records.map((record) => String(record.label)))].sort();
  const people = `of ${many(new Set(owners.map(String)).size, "owner")}`;
  const shown = labels.length > 8 ? `${labels.slice(0, 8).join(", ")} and ${labels.length - 8} more` : labels.join(", ");
  return `Ready: ${many(records.length, "record")} ${people}; ${[...widths].join(" or ")} features; labels ${shown}.`;
}

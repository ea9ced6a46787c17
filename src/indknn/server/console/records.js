// Add records. The text stays until the server has accepted it, so that an error loses no work.

import { call, newId } from "./api.js";
import { labelName, parseRecords } from "./columns.js";
import { textOf } from "./csv.js";
import { busy, find, tell } from "./dom.js";
import { count, many } from "./format.js";

export function mount(page) {
  const form = find("#records form"), button = find("button", form);
  const text = find("#records-text"), file = find("#records-file");
  const preview = find("#records-preview"), error = find("#records-error"), result = find("#records-result");
  let records = null, pending = null; // an upload whose answer was lost is sent with the same id, and done once

  text.addEventListener("input", () => { tell(result, ""); read(); });
  file.addEventListener("change", async () => {
    if (!file.files[0]) return;
    tell(result, "");
    try {
      text.value = await textOf(file.files[0]);
      read();
    } catch (problem) {
      text.value = ""; // or the file before it would be added
      read();
      tell(error, problem.message);
    }
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
        const found = parseRecords(text.value, { schema: page.model?.parameters.schema, classes: page.session.classes ?? [] });
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
    if (pending?.text !== text.value) pending = { id: newId(), text: text.value };
    tell(error, "");
    tell(result, "Adding.");
    try {
      const answer = await call("POST", "/v1/records", { records }, pending.id);
      pending = null;
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
        ? `${failure.message} It is not known whether the records were added. Adding the same text again adds nothing twice.`
        : failure.message);
      page.failed(failure);
    }
  }

  return {
    show() {
      const schema = page.model?.parameters.schema;
      const label = labelName(schema), owner = schema?.owner ?? "owner", id = schema?.record_id ?? "record_id";
      tell(find("#records-hint"), `CSV, as for indknn add: the first row has the names of the columns. ${label ? `"${label}"` : '"label" or "y"'} is the label, `
        + `"${owner}" the person, "${id}" may be your own id of the record, and "${schema?.expires ?? "expires"}" the day from which it takes no part. ${schema ? "The other columns are those of the schema" : "All other columns are features, numbers"}. `
        + `JSON: a list of {${schema ? '"values": {...}' : '"features": [...]'}, "label": ..., "owner": ...}. A record whose id was added before is replaced.`);
    },
  };
}

function describe(records) {
  // Owners are never guessed. A row without a name could belong to a person who has records already.
  const nameless = records.filter((record) => record.owner === undefined && record.id === undefined).length;
  if (nameless > 0) throw new Error(`${many(nameless, "record names no owner", "records name no owner")}. Add a column "owner".`);
  const owners = records.map((record) => record.owner ?? `record ${record.id}`);
  const widths = new Set(records.map((record) => (record.values ? many(Object.keys(record.values).length, "column") : many(record.features.length, "feature"))));
  const labels = [...new Set(records.map((record) => String(record.label)))].sort();
  const people = `of ${many(new Set(owners.map(String)).size, "owner")}`;
  const shown = labels.length > 8 ? `${labels.slice(0, 8).join(", ")} and ${labels.length - 8} more` : labels.join(", ");
  return `Ready: ${many(records.length, "record")} ${people}; ${[...widths].join(" or ")}; labels ${shown}.`;
}

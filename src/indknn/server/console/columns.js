// What the columns of a table mean: by the store's schema, or by the usual names if it has none.

import { number, parseTable } from "./csv.js";

const LABELS = ["label", "y"];

// Where the columns are that are no features. `ids` are more names for ids. Columns of the schema keep their meaning.
function roles(names, schema, ids) {
  const free = names.map((name) => (schema && Object.hasOwn(schema.columns, name) ? null : name.trim().toLowerCase()));
  const find = (known, usual) => (known ? names.indexOf(known) : free.findIndex((name) => usual.includes(name)));
  const id = find(schema?.record_id, ["record_id"]);
  const owner = find(schema?.owner, ["owner"]), expires = find(schema?.expires, ["expires"]);
  return { label: find(labelName(schema), LABELS), owner, id: id < 0 ? find(null, ids) : id, expires };
}

export const labelName = (schema) => schema?.label?.column ?? (typeof schema?.label === "string" ? schema.label : undefined);

// Rows of a file as queries, and the ids of the rows if the file has them.
export function parseQueries(text, { schema, takesTexts, width }) {
  const { names, rows } = parseTable(text);
  const { label, owner, id, expires } = roles(names, schema, ["record_id", "id"]);
  const used = names.map((_, j) => j).filter((j) => ![label, owner, id, expires].includes(j));
  const read = schema ? named(names, used) : takesTexts ? texts(names, used) : numbers(names, used, width);
  return { rows: rows.map(read), ids: id < 0 ? null : { name: names[id], values: rows.map((row) => row[id]) } };
}

// Records from a CSV, or from JSON.
export function parseRecords(text, { schema, classes }) {
  const trimmed = text.trim();
  if (/^[[{]/.test(trimmed)) return fromJson(trimmed, schema);
  const { names, rows } = parseTable(text);
  const { label, owner, id, expires } = roles(names, schema, []);
  if (label < 0) throw new Error(`The first row must name the columns, and one of them must be ${wanted(labelName(schema), LABELS)}.`);
  if (owner >= 0) {
    // One empty name would make one person of many, with a single budget.
    const nobody = rows.findIndex((row) => row[owner].trim() === "");
    if (nobody >= 0) throw new Error(`Row ${nobody} has no owner.`);
  }
  const typed = labelType(rows.map((row) => row[label].trim()), classes);
  const used = names.map((_, j) => j).filter((j) => ![label, owner, id, expires].includes(j));
  const read = schema ? named(names, used) : numbers(names, used);
  return rows.map((row, i) => ({
    [schema ? "values" : "features"]: read(row, i),
    label: typed(row[label].trim()),
    ...(owner < 0 ? {} : { owner: row[owner] }),
    ...(id < 0 ? {} : { record_id: row[id] }),
    ...(expires < 0 || row[expires].trim() === "" ? {} : { expires: row[expires].trim() }),
  }));
}

const wanted = (known, usual) => (known ? [known] : usual).map((name) => `"${name}"`).join(" or ");
const named = (names, used) => (row) => Object.fromEntries(used.map((j) => [names[j], row[j]]));

function numbers(names, used, width = used.length) {
  if (used.length !== width) throw new Error(`A query must have ${width} columns of numbers, got ${used.length}.`);
  return (row, i) => used.map((j) => number(row[j], `row ${i}, column ${names[j]}`));
}

function texts(names, used) {
  const column = used.length === 1 ? used[0] : names.indexOf("text");
  if (column < 0) throw new Error('One of the columns must be "text".');
  return (row) => row[column];
}

// CSV has no types. A store with numbers for labels gets numbers; a new one does if all of them look so.
function labelType(labels, classes) {
  const numeric = classes.length > 0
    ? classes.every((name) => typeof name === "number")
    : labels.every((text) => /^-?\d+$/.test(text));
  return numeric ? (text) => (/^-?\d+$/.test(text) ? Number(text) : text) : (text) => text;
}

function fromJson(text, schema) {
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not valid JSON: ${error.message}.`);
  }
  const list = Array.isArray(parsed) ? parsed : parsed.records;
  if (!Array.isArray(list)) throw new Error('JSON must be a list of records, or {"records": [...]}.');
  list.forEach((record, i) => {
    if (!Array.isArray(record?.features) && !(schema && record?.values)) {
      throw new Error(`Record ${i + 1} has no ${schema ? '"values" by column' : 'list of "features"'}.`);
    }
    if (record.label === undefined) throw new Error(`Record ${i + 1} has no "label".`);
  });
  return list;
}

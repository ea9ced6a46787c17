// Records from pasted text: CSV with names in the first row, or JSON. Throws sentences.

export function parseRecords(text, classes) {
  const trimmed = text.trim();
  if (/^[[{]/.test(trimmed)) return fromJson(trimmed);
  return fromCsv(trimmed, classes);
}

function fromJson(text) {
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not valid JSON: ${error.message}.`);
  }
  const list = Array.isArray(parsed) ? parsed : parsed.records;
  if (!Array.isArray(list)) throw new Error('JSON must be a list of records, or {"records": [...]}.');
  list.forEach((record, i) => {
    if (!Array.isArray(record?.features)) throw new Error(`Record ${i + 1} has no list of "features".`);
    if (record.label === undefined) throw new Error(`Record ${i + 1} has no "label".`);
  });
  return list;
}

function fromCsv(text, classes) {
  const [head, ...rows] = parseCsv(text);
  const names = head.map((name) => name.trim().toLowerCase());
  const label = names.findIndex((name) => name === "label" || name === "y");
  const owner = names.indexOf("owner"), own = names.indexOf("record_id");
  if (label < 0) throw new Error('The first row must name the columns, and one of them must be "label" or "y".');
  if (rows.length === 0) throw new Error("There is a row of names, but no record under it.");
  rows.forEach((row, i) => {
    if (row.length !== head.length) {
      throw new Error(`Row ${i + 2} has ${row.length} values, but the first row has ${head.length}.`);
    }
    // One empty name would make one person of many, with a single budget.
    if (owner >= 0 && row[owner].trim() === "") throw new Error(`Row ${i + 2} has no owner.`);
  });
  const typed = labelType(rows.map((row) => row[label].trim()), classes);
  return rows.map((row, i) => ({
    features: row.flatMap((cell, j) => ([label, owner, own].includes(j) ? [] : [number(cell, `row ${i + 2}, column ${head[j]}`)])),
    label: typed(row[label].trim()),
    ...(owner < 0 ? {} : { owner: row[owner] }),
    ...(own < 0 ? {} : { record_id: row[own] }),
  }));
}

// CSV has no types. A store with numbers for labels gets numbers; a new one does if all of them look so.
function labelType(labels, classes) {
  const numeric = classes.length > 0
    ? classes.every((name) => typeof name === "number")
    : labels.every((text) => /^-?\d+$/.test(text));
  return numeric ? (text) => (/^-?\d+$/.test(text) ? Number(text) : text) : (text) => text;
}

export function number(text, where) {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) throw new Error(`"${text.trim()}" in ${where} is not a number.`);
  return value;
}

// Quotes as in RFC 4180: "a ""b"", c" is one value, and may hold line breaks. Empty lines are skipped.
export function parseCsv(text) {
  const rows = [];
  let row = [], cell = "", quoted = false, wasQuoted = false;
  const endCell = () => { row.push(cell); cell = ""; wasQuoted = false; };
  const endRow = () => {
    const blank = row.length === 0 && cell.trim() === "" && !wasQuoted;
    endCell();
    if (!blank) rows.push(row);
    row = [];
  };
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') { cell += '"'; i++; }
      else quoted = false;
    } else if (c === '"' && cell.trim() === "") { cell = ""; quoted = true; wasQuoted = true; }
    else if (c === ",") endCell();
    else if (c === "\n") endRow();
    else if (c !== "\r") cell += c;
  }
  if (quoted) throw new Error("A quotation mark is opened and never closed.");
  endRow();
  return rows;
}

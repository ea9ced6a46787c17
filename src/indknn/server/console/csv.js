// Tables from text, as `indknn add` and `indknn predict` read them: names in the first row, and all values are text.
// Throws sentences.

const LARGEST = 2_000_000; // bytes; a text field is slow above this, and the command line is better
const SEPARATORS = [",", ";", "\t", "|"];
const TRIED = 100; // rows that must fit a separator

// The text of a chosen file. Other encodings are refused: a wrong letter in a name would make another person.
export async function textOf(file) {
  if (file.size > LARGEST) throw new Error(`${file.name} is too large for this page. Use the command line: indknn --help.`);
  if (file.size === 0) throw new Error(`${file.name} is empty.`);
  const bytes = new Uint8Array(await file.arrayBuffer()), mark = `${bytes[0]} ${bytes[1]}`;
  const encoding = { "255 254": "utf-16le", "254 255": "utf-16be" }[mark] ?? "utf-8"; // Excel's "Unicode text" is UTF-16
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${file.name} is not text in UTF-8. Save it as CSV UTF-8.`);
  }
}

// The names of the columns, and the rows under them. Errors count these rows from 0, as the server does.
export function parseTable(text) {
  const [names = [], ...rows] = cells(text, separatorOf(text));
  if (rows.length === 0) throw new Error("There must be a row of column names, and rows under it.");
  rows.forEach((row, i) => {
    if (row.length !== names.length) throw new Error(`Row ${i} has ${row.length} values, but there are ${names.length} names of columns.`);
  });
  if (names.length > 1 && [names, ...rows].every((row) => row.at(-1) === "")) { // every line ends with a separator
    for (const row of [names, ...rows]) row.pop();
  }
  const twin = names.find((name, i) => names.indexOf(name) < i);
  if (twin !== undefined) throw new Error(`The column "${twin}" must not occur twice.`);
  return { names, rows };
}

// The first separator that gives the first rows as many values as there are names, and more than one.
function separatorOf(text) {
  const tried = SEPARATORS.map((separator) => [separator, cells(text, separator, TRIED)]);
  const fits = tried.find(([, [head = [], ...rows]]) => head.length > 1 && rows.every((row) => row.length === head.length));
  return (fits ?? tried.reduce((best, one) => ((one[1][0]?.length ?? 0) > (best[1][0]?.length ?? 0) ? one : best)))[0];
}

// Quotes as in RFC 4180: "a ""b"", c" is one value, and may hold line breaks. Empty lines are skipped.
function cells(text, separator, most = Infinity) {
  const rows = [];
  let row = [], cell = "", quoted = false, wasQuoted = false;
  const endCell = () => { row.push(cell); cell = ""; wasQuoted = false; };
  const endRow = () => {
    const blank = row.length === 0 && cell.trim() === "" && !wasQuoted;
    endCell();
    if (!blank) rows.push(row);
    row = [];
  };
  for (let i = text.startsWith("\ufeff") ? 1 : 0; i < text.length && rows.length < most; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') { cell += '"'; i++; }
      else quoted = false;
    } else if (c === '"' && cell.trim() === "") { cell = ""; quoted = true; wasQuoted = true; }
    else if (c === separator) endCell();
    else if (c === "\n") endRow();
    else if (c !== "\r") cell += c;
  }
  if (quoted && most === Infinity) throw new Error("A quotation mark is opened and never closed.");
  endRow();
  return rows;
}

export function number(text, where) {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) throw new Error(`"${text.trim()}" in ${where} is not a number.`);
  return value;
}

// A table as text that `parseTable` reads back.
export const csvOf = (rows) => rows.map((row) => `${row.map(quote).join(",")}\r\n`).join("");

const quote = (value) => (/[",\r\n;\t|]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));

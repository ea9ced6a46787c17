// Talking to the server. The key lives in this module's memory and nowhere else: not in the address, not in storage.

let key = null;

export const setKey = (value) => { key = value; };

const PATIENCE = 60_000; // ms; large uploads take a while

// What went wrong, as a sentence for people. `kind` is for the program.
export class Failure extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }

  // Whether the server may have done it all the same: an answer was lost on the way, or it broke in the middle.
  get unsure() {
    return this.kind === "unreachable" || this.kind === "broken";
  }
}

// With a `request` id the server does it once, however often it is sent.
export async function call(method, path, body, request) {
  const headers = { Accept: "application/json" };
  if (request !== undefined) headers["X-Request-Id"] = request;
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response, answer;
  try {
    response = await fetch(path, {
      method, headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "omit", redirect: "error",
      signal: AbortSignal.timeout(PATIENCE),
    });
    answer = await response.text();
  } catch {
    throw new Failure("unreachable", "The server cannot be reached.");
  }
  const parsed = parse(answer);
  if (!response.ok) throw failure(response, parsed);
  if (parsed === undefined) throw new Failure("broken", "The server's answer could not be read.");
  return parsed;
}

// Browsers have no randomUUID for pages that come over plain HTTP from another machine.
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function failure(response, answer) {
  const said = sentence(answer?.error);
  switch (response.status) {
    case 401: return new Failure("key", "The server does not accept this key.");
    case 403: return new Failure("forbidden", `This key does not allow that. ${said}`.trim());
    case 413: return new Failure("refused", `That is more than the server takes at once. ${said}`.trim());
    case 429: return new Failure("busy", `Too many requests. ${wait(response)} ${said}`.trim());
    default: return new Failure(response.status >= 500 ? "broken" : "refused", said || `The server answered with status ${response.status}.`);
  }
}

function wait(response) {
  const seconds = Number(response.headers.get("Retry-After"));
  return seconds > 0 ? `Try again in ${Math.ceil(seconds)} s.` : "Try again later.";
}

// The server's messages start small and end without a stop.
function sentence(message) {
  if (typeof message !== "string" || message === "") return "";
  const text = message[0].toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

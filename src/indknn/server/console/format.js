// Numbers and times as people read them.

const LOCALE = "en-GB";
const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });

export const count = (n) => whole.format(n);

export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

// Four digits are enough to read; tiny numbers keep their exponent.
export function figure(x) {
  return Math.abs(x) >= 1e-3 || x === 0 ? String(Number(x.toPrecision(4))) : x.toExponential();
}

export function percent(share) {
  if (share > 0 && share < 0.001) return "under 0.1%";
  return `${Number((100 * share).toFixed(1))}%`;
}

// Bounds are rounded up: what is shown must still be true.
export const percentUp = (share) => `${(Math.ceil(1000 * share) / 10).toFixed(1)}%`;

export const clock = (date) => date.toLocaleTimeString(LOCALE, { hour12: false });

// The trail is kept in UTC, and shown as it is kept.
export const stamp = (at) => String(at).replace("T", " ").replace("Z", "");

export const short = (hash) => `${hash.slice(0, 10)}…`;

// Two charts in SVG, drawn here: a ready-made library writes inline styles, which this page's policy forbids.
// Colours come from the style sheet by class. Every chart has a title, a sentence above and a table beside it.

import { draw } from "./dom.js";
import { count } from "./format.js";

const HEIGHT = 220, LEFT = 48, RIGHT = 12, TOP = 12, BOTTOM = 40;

// Draws anew when the width changes: a picture that is merely scaled has unreadable letters on a phone.
export function chart(place, paint) {
  let data = null, drawn = "";
  const redraw = () => {
    const width = Math.round(place.clientWidth);
    const state = JSON.stringify([width, data]);
    if (data === null || width === 0 || state === drawn) return;
    drawn = state;
    place.replaceChildren(paint(data, width));
  };
  new ResizeObserver(redraw).observe(place);
  return (fresh) => { data = fresh; redraw(); };
}

export function bars({ title, values, labels, axis }, width) {
  const { picture, x, y, right } = frame(title, width, Math.max(1, ...values));
  const step = (right - LEFT) / values.length;
  values.forEach((value, i) => {
    const bar = draw("rect", { class: "ink", x: x(i / values.length) + 1, y: y(value), width: Math.max(1, step - 2), height: y(0) - y(value) });
    bar.append(draw("title", {}, `${labels[i]}: ${count(value)}`));
    picture.append(bar);
  });
  for (const share of [0, 0.5, 1]) picture.append(text(x(share), HEIGHT - 22, `${100 * share}%`, anchor(share)));
  picture.append(text(x(0.5), HEIGHT - 5, axis, "middle"));
  return picture;
}

// A running sum over time: flat while nothing happens, a step where something does.
export function steps({ title, points }, width) {
  const first = points[0].time, last = Math.max(points.at(-1).time, first + 1000);
  const { picture, x, y } = frame(title, width, points.at(-1).sum);
  const at = (time) => x((time - first) / (last - first));
  let line = `M${at(first)} ${y(0)}`;
  for (const { time, sum } of points) line += `H${at(time).toFixed(1)}V${y(sum).toFixed(1)}`;
  line += `H${at(last)}`;
  picture.append(draw("path", { class: "area", d: `${line}V${y(0)}Z` }), draw("path", { class: "line", d: line }));
  const [from, to] = [first, last].map((time) => new Date(time).toISOString().replace("T", " "));
  const day = from.slice(0, 10), sameDay = day === to.slice(0, 10);
  const part = sameDay ? [11, 19] : [0, 16]; // short enough for two of them side by side on a phone
  picture.append(text(x(0), HEIGHT - 22, from.slice(...part), "start"), text(x(1), HEIGHT - 22, to.slice(...part), "end"));
  picture.append(text(x(0.5), HEIGHT - 5, sameDay ? `${day}, UTC` : "UTC", "middle"));
  return picture;
}

const anchor = (share) => ({ 0: "start", 1: "end" })[share] ?? "middle";
const text = (x, y, words, place) => draw("text", { x, y, "text-anchor": place }, words);

function frame(title, width, largest) {
  const right = width - RIGHT, { top, ticks } = scale(largest);
  const x = (share) => LEFT + share * (right - LEFT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  const picture = draw("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const tick of ticks) {
    picture.append(draw("line", { class: "grid", x1: LEFT, x2: right, y1: y(tick), y2: y(tick) }));
    picture.append(text(LEFT - 6, y(tick) + 4, compact(tick), "end"));
  }
  return { picture, x, y, right };
}

const compact = (n) => (n < 10_000 ? count(n) : new Intl.NumberFormat("en-GB", { notation: "compact" }).format(n));

// Round steps of 1, 2 or 5: whole things are counted here.
function scale(largest) {
  const rough = Math.max(1, largest / 4), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const top = Math.ceil(largest / step) * step;
  return { top, ticks: Array.from({ length: Math.round(top / step) + 1 }, (_, i) => i * step) };
}

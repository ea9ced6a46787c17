// Building the page. Text only ever becomes a text node: names and labels come from strangers.

const SVG = "http://www.w3.org/2000/svg";

export const find = (selector, root = document) => root.querySelector(selector);

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

// A sentence that is shown, or nothing. Unchanged text is left alone, so that it is not read out again.
export function tell(node, text) {
  const words = text ?? "";
  if (node.textContent !== words) node.textContent = words;
  if (node.matches(".notice")) node.hidden = words === "";
}

// A list of [term, value] as <dl>. A value may be a node.
export function pairs(list, attributes = {}) {
  const rows = list.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value)));
  return make("dl", attributes, ...rows);
}

export function table(head, rows) {
  const cells = (tag, values, more = {}) => make("tr", {}, ...values.map((value) => make(tag, more, value)));
  return make("table", {},
    make("thead", {}, cells("th", head, { scope: "col" })),
    make("tbody", {}, ...rows.map((row) => cells("td", row))));
}

// While work runs the button is marked, not disabled: a disabled button would drop the keyboard's focus.
export async function busy(button, work) {
  if (button.getAttribute("aria-busy") === "true") return;
  button.setAttribute("aria-busy", "true");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-busy");
  }
}

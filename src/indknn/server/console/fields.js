// A field for each column of a schema. An empty field is a gap, and is sent as null.

import { make } from "./dom.js";
import { figure } from "./format.js";

const NOT_KNOWN = "not known";

// One field: its nodes, and `read`, which gives its value or throws a sentence. `focus` goes to what is wrong.
export function fieldOf(name, about, id) {
  const kind = about.kind ?? about, required = about.missing === "refuse";
  const { input, hint, value } = (KINDS[kind] ?? KINDS.category)(about, required);
  input.id = id;
  input.setAttribute("aria-describedby", `${id}-hint ask-error`);
  const words = [hint, required ? "must be given" : ""].filter(Boolean).join("; ");
  const node = make("div", kind === "text" ? { class: "whole" } : {},
    make("label", { for: id }, name), input, make("p", { class: "hint", id: `${id}-hint` }, words));
  const refuse = (why) => { throw Object.assign(new Error(`${name} ${why}.`), { field: input }); };
  return {
    node, name,
    read() {
      if (input.validity.badInput) refuse(kind === "date" ? "must be a whole date" : "must be a number");
      if (input.value === "" && required) refuse("must be given");
      return input.value === "" ? null : value(input);
    },
  };
}

const KINDS = {
  number: ({ bounds = [0, 1] }) => ({
    input: make("input", { type: "number", step: "any", min: bounds[0], max: bounds[1], autocomplete: "off" }),
    hint: `${figure(Number(bounds[0]))} to ${figure(Number(bounds[1]))}`,
    value: (input) => Number(input.value),
  }),
  date: ({ bounds }) => ({
    input: make("input", { type: "date", min: bounds[0], max: bounds[1] }),
    hint: `${bounds[0]} to ${bounds[1]}`,
    value: (input) => input.value,
  }),
  text: () => ({
    input: make("textarea", { rows: 3 }),
    hint: "",
    value: (input) => input.value,
  }),
  yesno: ({ yes, no }, required) => ({
    input: choice([["true", yes?.[0] ?? "yes"], ["false", no?.[0] ?? "no"]], required),
    hint: "",
    value: (input) => input.value === "true",
  }),
  category: ({ values, buckets }, required) => {
    if (buckets) return { input: make("input", { type: "text", autocomplete: "off" }), hint: "", value: (input) => input.value };
    let other = "another value";
    while (values.includes(other)) other += "*";
    return { input: choice([...values, other].map((value) => [value, value]), required), hint: "", value: (input) => input.value };
  },
};

function choice(options, required) {
  const nothing = make("option", { value: "" }, required ? "choose" : NOT_KNOWN);
  return make("select", {}, nothing, ...options.map(([value, text]) => make("option", { value }, text)));
}

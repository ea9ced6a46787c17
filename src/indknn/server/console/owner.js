// Look an owner up, forget them, and keep the receipt.

import { call } from "./api.js";
import { busy, find, make, pairs, tell } from "./dom.js";
import { count, figure, many, percent, stamp } from "./format.js";

const path = (name) => `/v1/owners/${encodeURIComponent(name)}`;

export function mount(page) {
  const lookup = find("#owner-form"), name = find("#owner-name"), error = find("#owner-error");
  const statement = find("#statement"), receipt = find("#receipt");
  const forget = find("#forget-form"), again = find("#forget-name"), button = find("button", forget);
  const forgetError = find("#forget-error"), link = find("#receipt-link");
  const lower = find("#lower-form"), epsilon = find("#lower-epsilon"), lowerError = find("#lower-error");
  const search = find("#owner-search"), found = find("#owner-found"), list = find("#owner-list");
  let shown = null; // the owner whose statement is on the page, and whom the form would forget

  lookup.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(find("button", lookup), () => look(name.value));
  });
  search.addEventListener("click", () => busy(search, seek));
  again.addEventListener("input", () => { button.disabled = again.value !== shown; });
  lower.addEventListener("submit", (event) => {
    event.preventDefault();
    if (shown !== null) busy(find("button", lower), () => promise(shown));
  });
  forget.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!button.disabled && shown !== null) busy(button, erase);
  });

  function clear() {
    shown = null;
    tell(found, "");
    list.replaceChildren();
    statement.replaceChildren();
    forget.hidden = true;
    lower.hidden = true;
    epsilon.value = "";
    again.value = "";
    button.disabled = true;
    tell(error, "");
    tell(forgetError, "");
    tell(lowerError, "");
  }

  // Names that contain what was typed, to choose from.
  async function seek() {
    clear();
    hideReceipt();
    if (name.value === "") {
      tell(error, "Type a part of the name.");
      name.focus();
      return;
    }
    try {
      const { owners, more } = await call("GET", `/v1/owners?search=${encodeURIComponent(name.value)}`);
      tell(found, owners.length === 0 ? "No owner has this text in their name." : more ? `The first ${count(owners.length)}; type more of the name.` : many(owners.length, "owner"));
      list.replaceChildren(...owners.map((one) => {
        const choose = make("button", { type: "button", class: "quiet" }, one);
        choose.addEventListener("click", () => { name.value = one; busy(choose, () => look(one)); });
        return make("li", {}, choose);
      }));
    } catch (failure) {
      tell(error, failure.message);
      page.failed(failure);
    }
  }

  // Not always what the field shows: a field drops line breaks, and then it would be another person's name.
  async function look(wanted) {
    clear();
    hideReceipt();
    if (/^\.{0,2}$/.test(wanted)) { // "." and ".." cannot stand in an address: browsers resolve them, whatever the escape
      tell(error, wanted === "" ? "Type the name of an owner." : "This name cannot be asked for here. Use indknn owner on the server.");
      name.focus();
      return;
    }
    try {
      const facts = await call("GET", path(wanted));
      shown = wanted;
      statement.replaceChildren(...lines(facts));
      // Whoever has no records left is forgotten already.
      forget.hidden = !(page.may("forget") && facts.records > 0);
      lower.hidden = !(page.may("lower") && facts.records > 0);
    } catch (failure) {
      tell(error, failure.message);
      page.failed(failure);
    }
  }

  async function promise(owner) {
    tell(lowerError, "");
    const wanted = Number(epsilon.value.replace(",", "."));
    if (!(wanted > 0)) {
      tell(lowerError, "Type a number above 0.");
      epsilon.focus();
      return;
    }
    try {
      await call("PATCH", path(owner), { epsilon: wanted });
      await look(owner);
    } catch (failure) {
      tell(lowerError, failure.message);
      page.failed(failure);
    }
  }

  async function erase() {
    const gone = shown;
    tell(forgetError, "");
    try {
      const paper = await call("DELETE", path(gone));
      clear();
      name.value = "";
      present(paper, gone);
      page.refresh();
    } catch (failure) {
      tell(forgetError, failure.unsure
        ? `${failure.message} It is not known whether they were forgotten. Look them up again.`
        : failure.message);
      page.failed(failure);
    }
  }

  function present(paper, gone) {
    const text = `${JSON.stringify(paper, null, 2)}\n`;
    tell(find("#receipt-title"), `Receipt for ${gone}`);
    tell(find("#receipt-words"), `Erased ${many(paper.records, "record")} at ${stamp(paper.at)} UTC. `
      + "An entry of the audit trail has the same hash. This page keeps no copy.");
    find("#receipt-json").textContent = text;
    hideReceipt();
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = `receipt-${paper.audit_hash.slice(0, 12)}.json`; // no name in it: file names travel further than files
    receipt.hidden = false;
    find("#receipt-title").focus();
    link.click();
  }

  function hideReceipt() {
    if (link.href) URL.revokeObjectURL(link.href);
    link.removeAttribute("href");
    receipt.hidden = true;
  }

  return {
    show() {
      search.hidden = !page.may("curate");
      const own = page.session.owner; // an owner's key is for one owner, who sees their statement at once
      if (own && name.value === "" && shown === null && receipt.hidden) {
        name.value = own;
        look(own);
      }
    },
  };
}

function lines(facts) {
  const accounts = [facts.one_analyst, facts.together].flatMap((account) => [
    [`Spent, ${account.observer}`, `${spent(account)}${facts.records > 0 ? "" : ", kept in the ledger"}`],
    [`ε so far, ${account.observer}`, soFar(account)],
  ]);
  const all = facts.over_all_periods; // null unless budgets are renewed
  const over = all ? [all.one_analyst, all.together].map((account) =>
    [`ε over all ${count(all.begun)} periods, ${account.observer}`, soFar(account)]) : [];
  const { rounding } = facts;
  return [
    pairs([["Owner", facts.owner], ["Records", count(facts.records)], ...accounts, ...over], { class: "facts" }),
    ...(facts.promise ? [make("p", {}, `${facts.promise[0].toUpperCase()}${facts.promise.slice(1)}.`)] : []),
    make("p", { class: "hint" }, `${rounding[0].toUpperCase()}${rounding.slice(1)}. ${facts.words}`),
  ];
}

const spent = ({ spent: rho, budget }) =>
  (budget === null ? `${figure(rho)}; no limit` : `${percent(rho / budget)} of the budget`);

function soFar({ epsilon, epsilon_so_far: value, delta, filter }) {
  const promised = epsilon === null ? "" : ` of ${figure(epsilon)} promised`;
  return `${value === null ? "too large to compute" : figure(value)}${promised}, at δ = ${figure(delta)}, filter ${filter}`;
}

// The list of attempts and its filters, which the data name: {name, label, values}; an attempt has one value of each.
const SCREEN = 1000; // rows that are made at once

// The form; `changed` is called when a filter or the search changes. A filter with one value only is left out.
const filtersView = (data, changed) => {
  let waiting = 0;
  const later = () => { clearTimeout(waiting); waiting = setTimeout(changed, 150); };
  const selects = data.filters.filter(({ values }) => values.length > 1).map(({ name, label, values }) => make("label", {}, label,
    make("select", { name, onchange: changed }, make("option", { value: "" }, "all"), values.map((text) => make("option", { value: text }, text)))));
  const form = byId("filters");
  form.replaceChildren(make("label", { class: "wide" }, "search in everything",
    make("input", { type: "search", name: "search", id: "search", autocomplete: "off", spellcheck: "false", oninput: later })), ...selects);
  form.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
};

// Numbers of the attempts that pass the filters and, where something is searched for, have a hit.
const listed = (data, found) => {
  const wanted = new FormData(byId("filters"));
  const passes = (one) => data.filters.every(({ name, values }, k) => !wanted.get(name) || wanted.get(name) === values[one.labels[k]]);
  return data.trajectories.flatMap((one, i) => (passes(one) && (!hitPattern || found[i].length) ? [i + 1] : []));
};

const rowView = (data, found, t) => {
  const one = data.trajectories[t - 1];
  const turn = found[t - 1]?.find((number) => number > 0) ?? 1;
  return make("li", {}, make("a", { href: linkTo(t, turn), "data-t": t },
    make("span", { class: "number" }, String(t)),
    make("span", { class: "what" }, nameOf(data, one)),
    make("span", { class: one.solved ? "good" : "bad" }, one.result),
    make("span", { class: "how" }, `${words(one.ended)}, ${one.length}`)));
};

const showRows = (data, found, numbers) => {
  byId("rows").replaceChildren();
  const add = (start) => {
    const rest = numbers.length - start - SCREEN;
    byId("rows").append(...numbers.slice(start, start + SCREEN).map((t) => rowView(data, found, t)));
    if (rest <= 0) return;
    const more = make("li", {}, make("button", { type: "button", onclick: () => { more.remove(); add(start + SCREEN); } }, `${count(rest)} more`));
    byId("rows").append(more);
  };
  add(0);
  byId("count").textContent = `${count(numbers.length)} of ${count(data.trajectories.length)} attempts`;
};

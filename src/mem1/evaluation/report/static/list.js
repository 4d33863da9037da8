// The list of trajectories and its filters.
const FILTERS = [
  ["run", "run", (data, one) => data.groups[one.group].run],
  ["policy", "policy", (data, one) => `${data.groups[one.group].policy}, ${data.groups[one.group].context}`],
  ["objectives", "N", (data, one) => String(data.groups[one.group].objectives)],
  ["ended", "ending", (data, one) => words(one.ended)],
  ["solved", "solved", (data, one) => (solved(one) ? "all right" : "not all right")],
];

// The form; `changed` is called when a filter or the search changes. A filter with one value only is left out.
const filtersView = (data, changed) => {
  let waiting = 0;
  const later = () => { clearTimeout(waiting); waiting = setTimeout(changed, 150); };
  const selects = FILTERS.map(([name, label, value]) => {
    const values = [...new Set(data.trajectories.map((one) => value(data, one)))];
    if (values.length < 2) return null;
    const options = values.map((text) => make("option", { value: text }, text));
    return make("label", {}, label, make("select", { name, onchange: changed }, make("option", { value: "" }, "all"), options));
  });
  const form = byId("filters");
  form.replaceChildren(make("label", { class: "wide" }, "search in everything",
    make("input", { type: "search", name: "search", id: "search", autocomplete: "off", spellcheck: "false", oninput: later })),
  ...selects.filter((select) => select !== null));
  form.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
};

// Numbers of the trajectories that pass the filters and, where something is searched for, have a hit.
const listed = (data, found) => {
  const wanted = new FormData(byId("filters"));
  const passes = (one) => FILTERS.every(([name, , value]) => !wanted.get(name) || wanted.get(name) === value(data, one));
  return data.trajectories.flatMap((one, i) => (passes(one) && (!hitPattern || found[i].length) ? [i + 1] : []));
};

const rowView = (data, found, t) => {
  const one = data.trajectories[t - 1];
  const group = data.groups[one.group];
  const turn = found[t - 1]?.find((number) => number > 0) ?? 1;
  return make("li", {}, make("a", { href: linkTo(t, turn), "data-t": t },
    make("span", { class: "number" }, String(t)),
    make("span", { class: "what" }, `${group.name}, N = ${group.objectives}`),
    make("span", { class: solved(one) ? "good" : "bad" }, result(one)),
    make("span", { class: "how" }, `${words(one.ended)}, ${one.turns.length} turns`)));
};

const showRows = (data, found, numbers) => {
  byId("rows").replaceChildren(...numbers.map((t) => rowView(data, found, t)));
  byId("count").textContent = `${count(numbers.length)} of ${count(data.trajectories.length)} trajectories`;
};

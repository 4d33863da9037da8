// The list of tasks: filters, one screen of rows at a time, and the numbers of each attempt behind a task's name.
const PER_SCREEN = 100;

const rightOf = (attempt) => attempt[0].reduce((sum, value) => sum + value, 0);
const solved = (attempt) => attempt !== null && attempt[0].every((value) => value === 1);

const OUTCOMES = {
  "right under all": (task) => task[4].every(solved),
  "right under none": (task) => !task[4].some(solved),
  "right under some only": (task) => task[4].some(solved) && !task[4].every(solved),
};

// [name, label, the values of a task]; a task passes if the chosen value is one of its values.
const filtersOf = (data) => [
  ["family", "family", (task) => [data.families[task[1]]]],
  ["level", "level", (task) => [String(task[2])]],
  ["objectives", "N", (task) => [String(task[3])]],
  ["ended", "ending, under any", (task) => task[4].filter((one) => one !== null).map((one) => data.endings[one[1]])],
  ["outcome", "all objectives", (task) => Object.keys(OUTCOMES).filter((name) => OUTCOMES[name](task))],
];

const textOf = (task) => [task[0], ...task[4].map((one) => (one === null ? "" : one[2]))].join("\n").toLowerCase();

const attemptCell = (data, attempt) => {
  if (attempt === null) return make("td", { class: "ended" }, "not attempted");
  const right = rightOf(attempt);
  const ended = data.endings[attempt[1]];
  return make("td", {}, make("span", { class: solved(attempt) ? "good" : right ? "" : "bad" }, `${+right.toFixed(2)}/${attempt[0].length}`),
    ended === "answered" ? "" : make("i", {}, ended));
};

const NUMBERS = ["turns", "searches", "fresh", "cached", "output", "peak", "cost", "seconds"];

const detailRow = (data, task) => {
  const head = ["", "right", "ended", ...NUMBERS].map((name) => make("th", { scope: "col" }, name));
  const rows = task[4].flatMap((one, i) => (one === null ? [] : [make("tr", {},
    make("td", {}, data.sides[i]),
    make("td", {}, one[0].map((value) => (value === 1 ? "✓" : value === 0 ? "✗" : String(value))).join(" ")),
    make("td", { class: "ended" }, data.endings[one[1]], one[2] ? `: ${one[2]}` : ""),
    one.slice(3).map((value, k) => make("td", {}, value === null ? "–" : NUMBERS[k] === "cost" ? `${value} ${data.units[i]}` : count(value))))]));
  return make("tr", { class: "detail" }, make("td", { colspan: 4 + data.sides.length },
    make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows))));
};

const taskRow = (data, task) => {
  const name = make("button", { type: "button", "aria-expanded": "false", onclick: () => {
    const open = name.getAttribute("aria-expanded") === "true";
    if (open) row.nextElementSibling.remove();
    else row.after(detailRow(data, task));
    name.setAttribute("aria-expanded", String(!open));
  } }, task[0]);
  const row = make("tr", {}, make("td", {}, name), make("td", {}, data.families[task[1]]), make("td", {}, String(task[2])),
    make("td", {}, String(task[3])), task[4].map((one) => attemptCell(data, one)));
  return row;
};

const filtersView = (filters, data, changed) => {
  let waiting = 0;
  const later = () => { clearTimeout(waiting); waiting = setTimeout(changed, 150); };
  const selects = filters.map(([name, label, valuesOf]) => {
    const values = [...new Set(data.tasks.flatMap(valuesOf))];
    if (values.length < 2) return null;
    return make("label", {}, label, make("select", { name, onchange: changed },
      make("option", { value: "" }, "all"), values.map((text) => make("option", { value: text }, text))));
  });
  byId("task-filters").replaceChildren(...selects.filter((select) => select !== null),
    make("label", {}, "search in ids and reasons",
      make("input", { type: "search", name: "search", id: "search", autocomplete: "off", spellcheck: "false", oninput: later })));
  byId("task-filters").addEventListener("submit", (event) => { event.preventDefault(); changed(); });
};

const openTasks = async () => {
  const data = JSON.parse(await inflate("data"));
  const filters = filtersOf(data);
  const texts = data.tasks.map(textOf);
  let listed = [];
  let first = 0;

  const show = () => {
    const screen = listed.slice(first, first + PER_SCREEN);
    byId("task-rows").replaceChildren(...screen.map((task) => taskRow(data, task)));
    const range = listed.length > PER_SCREEN ? `, shown ${count(first + 1)} to ${count(first + screen.length)}` : "";
    byId("count").textContent = `${count(listed.length)} of ${count(data.tasks.length)} tasks${range}`;
    byId("before").hidden = first === 0;
    byId("after").hidden = first + PER_SCREEN >= listed.length;
  };
  const changed = () => {
    const wanted = new FormData(byId("task-filters"));
    const search = (wanted.get("search") ?? "").trim().toLowerCase();
    const passes = (task, i) => filters.every(([name, , valuesOf]) => !wanted.get(name) || valuesOf(task).includes(wanted.get(name)))
      && (!search || texts[i].includes(search));
    listed = data.tasks.filter(passes);
    first = 0;
    show();
  };
  const turn = (by) => { first += by * PER_SCREEN; show(); };
  byId("before").addEventListener("click", () => turn(-1));
  byId("after").addEventListener("click", () => turn(1));
  byId("task-head").replaceChildren(make("tr", {},
    ["task", "family", "level", "N", ...data.sides].map((name) => make("th", { scope: "col" }, name))));
  filtersView(filters, data, changed);
  changed();
  document.documentElement.dataset.listMs = Math.round(performance.now());
};

// data-figures-ms and data-list-ms tell when each was ready, in milliseconds since the page was requested.
const start = async () => {
  await shown();
  await drawFigures();
  document.documentElement.dataset.figuresMs = Math.round(performance.now());
  await shown();
  await openTasks();
};
start();

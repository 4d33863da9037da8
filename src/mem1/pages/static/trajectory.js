// An attempt: how it ended, its questions, its turns as small bars, and one turn in full; beside it another one.
const linkTo = (t, turn, other) => `#t=${t}&turn=${turn}${other ? `&with=${other}` : ""}`;

const score = (value) => (value === undefined ? "–" : value.toFixed(2));

const nameOf = (data, one) => `${data.groups[one.group].name}, N = ${data.groups[one.group].objectives}`;

const METRICS = { em: "EM", f1: "F1" };

const objectivesView = (data, trajectory) => {
  const measured = Object.entries(trajectory.metrics).filter(([, value]) => Array.isArray(value));
  const names = measured.map(([name]) => METRICS[name] ?? name);
  const head = ["question", "gold", "answered", ...names].map((name) => make("th", { scope: "col" }, name));
  const rows = data.tasks[trajectory.task].questions.map(([label, question, gold], i) => make("tr", {},
    make("td", {}, `${label} `, marked(question)), make("td", {}, marked(gold)), make("td", {}, marked(trajectory.answers[i] || "–")),
    measured.map(([, values]) => make("td", { class: "measured" }, score(values[i])))));
  const right = trajectory.metrics.em ? `, ${trajectory.result} right` : "";
  return make("details", { open: rows.length <= 4 || undefined },
    make("summary", {}, `${rows.length === 1 ? "1 question" : `${rows.length} questions`}${right}`),
    make("div", { class: "scroll" },
      make("table", { class: "objectives" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows))));
};

const headView = (data, trajectory, t) => {
  const task = data.tasks[trajectory.task];
  return make("div", { class: "head" },
    make("h3", {}, nameOf(data, trajectory)),
    make("p", { class: "ending" }, `Attempt ${t}, task `, marked(task.id || "unknown"), ": ",
      make("b", { class: trajectory.ended === "answered" ? "good" : "bad" }, words(trajectory.ended)), ` ${trajectory.about}`,
      trajectory.detail ? [". ", marked(trajectory.detail)] : ""),
    objectivesView(data, trajectory));
};

// One bar per turn: its tokens, and behind it the tokens with everything appended.
const turnsView = (trajectory, found, here, link, largest) => make("nav", { "aria-label": "Turns" },
  make("ol", { class: "turns" }, trajectory.turns.map((turn, i) => {
    const [given, written, appended] = turn.sizes;
    const total = given + written;
    const bar = (kind, tokens) => {
      const element = make("span", { class: `bar ${kind}` });
      element.style.height = `${(100 * tokens) / largest}%`;
      return element;
    };
    return make("li", {}, make("a", {
      href: link(i + 1), "aria-current": i + 1 === here ? "true" : null, class: found.includes(i + 1) ? "hit" : null,
      title: `turn ${i + 1}: ${count(total)} tokens, appended ${count(appended)}`,
      "aria-label": `turn ${i + 1}, ${turn.action}, ${count(total)} tokens, appended ${count(appended)}`,
    }, make("span", { class: "bars" }, bar("appended", appended), bar("actual", total)), make("b", {}, String(i + 1))));
  })));

const largestOf = (trajectories) =>
  Math.max(1, ...trajectories.flatMap((one) => one.turns.map((turn) => Math.max(turn.sizes[0] + turn.sizes[1], turn.sizes[2]))));

// Numbers of the other attempts at the same task.
const partners = (data, t) => {
  const task = data.trajectories[t - 1].task;
  return data.trajectories.flatMap((one, i) => (one.task === task && i + 1 !== t ? [i + 1] : []));
};

const compareView = (data, here, go) => {
  const others = partners(data, here.t);
  if (!others.length) return null;
  const options = others.map((other) => make("option", { value: other, selected: other === here.other || undefined },
    `${data.groups[data.trajectories[other - 1].group].name} (${other})`));
  return make("label", { class: "compare" }, "beside it ",
    make("select", { id: "compare", onchange: (event) => go({ ...here, other: Number(event.target.value) }) },
      make("option", { value: 0 }, "nothing"), options));
};

const trajectoryView = (data, found, here, go) => {
  const pair = [here.t, ...(here.other ? [here.other] : [])];
  const largest = largestOf(pair.map((t) => data.trajectories[t - 1]));
  const one = (t) => {
    const trajectory = data.trajectories[t - 1];
    return make("article", { "aria-label": `attempt ${t}` }, headView(data, trajectory, t),
      turnsView(trajectory, found[t - 1] ?? [], here.turn, (turn) => linkTo(here.t, turn, here.other), largest),
      turnView(data, trajectory, here.turn));
  };
  return [compareView(data, here, go), make("div", { class: pair.length > 1 ? "pair" : "single" }, pair.map(one))];
};

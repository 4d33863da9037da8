// The address holds what is open: #t=12&turn=3&with=40. data-viewer-ms and data-figures-ms tell when each was ready, in
// milliseconds since the page was requested.
const openViewer = async () => {
  if (!byId("data")) return;
  const data = JSON.parse(await inflate("data"));
  if (!data.trajectories.length) return;
  let found = [];
  let numbers = [];

  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    const within = (name, most) => Math.min(Math.max(Math.trunc(Number(given.get(name))) || 0, 0), most);
    const t = within("t", data.trajectories.length) || numbers[0] || 1;
    const other = within("with", data.trajectories.length);
    const longest = Math.max(...[t, other || t].map((k) => data.trajectories[k - 1].turns.length), 1);
    return { t, turn: within("turn", longest) || 1, other };
  };
  const go = ({ t, turn, other }) => { location.hash = linkTo(t, turn, other); };

  const show = () => {
    const here = read();
    const focused = document.activeElement?.closest(".turns") ? "#detail .turns [aria-current]" : `#${document.activeElement?.id}`;
    byId("detail").replaceChildren(...trajectoryView(data, found, here, go).filter((part) => part !== null));
    if (focused !== "#") document.querySelector(focused)?.focus();
    for (const link of document.querySelectorAll(".turns [aria-current]")) {  // sideways alone: the page stays where it is
      const row = link.closest(".turns");
      row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.clientWidth) / 2;
    }
    for (const row of document.querySelectorAll("#rows [aria-current]")) row.removeAttribute("aria-current");
    const row = document.querySelector(`#rows [data-t="${here.t}"]`);
    row?.setAttribute("aria-current", "true");
    const list = row?.closest("nav").getBoundingClientRect(), place = row?.getBoundingClientRect();
    if (row) row.closest("nav").scrollTop += Math.min(place.top - list.top, 0) + Math.max(place.bottom - list.bottom, 0);
    say(`attempt ${here.t}, turn ${here.turn} of ${data.trajectories[here.t - 1].turns.length}`);
  };

  const changed = () => {
    setSearch(byId("search").value);
    found = hitPattern ? findHits(data) : [];
    numbers = listed(data, found);
    showRows(data, found, numbers);
    show();
  };

  // One attempt on (by = 1) or back (by = -1) in the list.
  const step = (by) => {
    const at = numbers.indexOf(read().t);
    const t = numbers[at < 0 ? 0 : at + by];
    if (t) go({ t, turn: found[t - 1]?.find((number) => number > 0) ?? 1, other: 0 });
  };
  const stepTurn = (by) => {
    const here = read();
    const longest = Math.max(...[here.t, here.other || here.t].map((k) => data.trajectories[k - 1].turns.length));
    if (here.turn + by >= 1 && here.turn + by <= longest) go({ ...here, turn: here.turn + by });
  };
  // The next turn with a hit, in this attempt or the next one of the list.
  const stepHit = (by) => {
    const here = read();
    const places = numbers.flatMap((t) => (found[t - 1] ?? []).filter((turn) => turn > 0).map((turn) => ({ t, turn, other: 0 })));
    const order = (place) => numbers.indexOf(place.t) * 1e6 + place.turn;
    const ahead = places.filter((place) => (order(place) - order(here)) * by > 0);
    if (ahead.length) go(ahead.at(by > 0 ? 0 : -1));
  };
  const compare = () => {
    const here = read();
    const others = partners(data, here.t);
    if (others.length) go({ ...here, other: here.other ? 0 : others[0] });
  };

  const KEYS = {
    j: () => step(1), k: () => step(-1), ArrowRight: () => stepTurn(1), ArrowLeft: () => stepTurn(-1),
    n: () => stepHit(1), p: () => stepHit(-1), c: compare, "/": () => byId("search").focus(),
  };
  addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.closest("input, select, textarea, .plot, .scroll")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = KEYS[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  addEventListener("hashchange", () => { if (location.hash.startsWith("#t=")) show(); });
  filtersView(data, changed);
  changed();
  if (location.hash.startsWith("#t=")) byId("trajectories").scrollIntoView();
  document.documentElement.dataset.viewerMs = Math.round(performance.now());
};

const start = async () => {
  await shown();
  await openViewer();
  await shown();
  await drawFigures();
  document.documentElement.dataset.figuresMs = Math.round(performance.now());
};
start();

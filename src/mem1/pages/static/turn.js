// One turn of an attempt: its exact context, its output and result, and the changes of memory.
const ROLE_NAMES = { query: "action", forced: "prefilled", rest: "after the action", text: "no role" };

// A piece is four numbers: role, text, tokens, turn of origin (0: none).
const readPieces = (data, flat) => {
  const pieces = [];
  for (let i = 0; i < flat.length; i += 4) {
    pieces.push({ role: data.roles[flat[i]], text: data.strings[flat[i + 1]], tokens: flat[i + 2], turn: flat[i + 3] });
  }
  return pieces;
};

const pieceView = (piece, number) => {
  const origin = piece.turn && piece.turn !== number ? ` of turn ${piece.turn}` : "";
  const label = `${ROLE_NAMES[piece.role] ?? piece.role}${origin}`;
  return make("div", { class: `piece ${piece.role}${piece.turn && piece.turn < number - 1 ? " older" : ""}` },
    make("span", { class: "role" }, label, make("i", {}, count(piece.tokens))), make("pre", {}, marked(piece.text)));
};

const block = (heading, small, ...content) =>
  make("section", { class: "block" }, make("h5", {}, heading, small ? make("i", {}, small) : null), content);

const changesView = (data, flat) => {
  const nodes = [];
  for (let i = 0; i < flat.length; i += 2) {
    const name = { "=": "span", "+": "ins", "-": "del" }[flat[i]];
    nodes.push(make(name, {}, marked(data.strings[flat[i + 1]])));
  }
  return make("pre", { class: "changes" }, nodes);
};

const FACTS = {
  ".": "not seen yet", h: "kept", l: "seen, not kept", "-": "seen; nothing written", p: "no longer needed: its answer was seen",
};
const FACT_CLASSES = { ".": "unseen", h: "held", l: "missing", "-": "unwritten", p: "past" };

const factsView = (task, turn) => {
  const seen = [...turn.facts].some((status) => status !== ".");
  if (!seen) return null;
  const items = [...turn.facts].map((status, i) => {
    const [label, text, leads] = task.facts[i];
    const change = turn.gained.includes(i) ? "gained" : turn.lost.includes(i) ? "lost" : "";
    const sign = { gained: "+ ", lost: "− " }[change] ?? "";
    const name = `${leads ? "to " : ""}${label}`;
    const title = `${leads ? "on the way to" : "answer of"} ${label}, ${text}: ${FACTS[status]}${change ? `, ${change}` : ""}`;
    return make("li", { class: `fact ${FACT_CLASSES[status]} ${change}`, title },
      `${sign}${name}`, status === "." ? null : make("span", {}, text));
  });
  return block("Facts", "gold answers and intermediate entities, once a result has shown them", make("ul", { class: "facts-list" }, items));
};

const turnView = (data, trajectory, number) => {
  const turn = trajectory.turns[number - 1];
  if (!turn) {
    const none = "Its turns are not on this page: they were not recorded, or left out.";
    return make("p", { class: "remark" }, trajectory.turns.length ? `No turn ${number}: it ended after ${trajectory.turns.length}.` : none);
  }
  const [given, written, appended] = turn.sizes;
  const [context, completion, result, lost] =
    [turn.context, turn.completion, turn.result, turn.dropped].map((flat) => readPieces(data, flat));
  const view = (pieces) => pieces.map((piece) => pieceView(piece, number));
  return make("div", { class: "turn" },
    make("p", { class: "sizes" }, make("b", {}, `Turn ${number}`), `: ${turn.action || "no action"}. `,
      `${count(given)} tokens given, ${count(written)} written, ${count(given + written)} together; appended `,
      make("b", {}, count(appended))),
    make("div", { class: "sides" },
      make("div", { class: "given" }, block("Given", `${count(given)} tokens`, view(context)),
        lost.length ? block(`Dropped since turn ${number - 1}`, `${count(lost.reduce((sum, p) => sum + p.tokens, 0))} tokens`,
          make("div", { class: "dropped" }, lost.map((piece) => pieceView(piece, number)))) : null),
      make("div", { class: "written" }, block("Written", `${count(written)} tokens`, view(completion)),
        result.length ? block("Returned", "", view(result)) : null,
        turn.changes.length ? block("State", "changes from the last one", changesView(data, turn.changes)) : null,
        factsView(data.tasks[trajectory.task], turn))));
};

// Search: one pattern finds the attempts and marks the hits in what is shown.
let hitPattern = null; // null: nothing is searched for

const setSearch = (text) => {
  hitPattern = text.trim() ? new RegExp(text.trim().replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu") : null;
};

const hits = (text) => hitPattern !== null && text.search(hitPattern) >= 0;

// The text as nodes, with hits in <mark>.
const marked = (text) => {
  if (!hits(text)) return [text];
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(hitPattern)) {
    nodes.push(text.slice(end, match.index), make("mark", {}, match[0]));
    end = match.index + match[0].length;
  }
  return [...nodes, text.slice(end)];
};

// Numbers of the visible strings of a turn: each piece is four numbers, the second is its text.
const stringsOf = function* (turn) {
  for (const pieces of [turn.context, turn.completion, turn.result]) {
    for (let i = 1; i < pieces.length; i += 4) yield pieces[i];
  }
};

// For every attempt: the numbers of its turns (from 1) with a hit, 0 for its questions, answers and ending.
const findHits = (data) => {
  const found = data.strings.map(hits);
  return data.trajectories.map((trajectory) => {
    const task = data.tasks[trajectory.task];
    const about = [task.id, trajectory.detail, ...trajectory.answers, ...task.questions.flat()];
    const turns = trajectory.turns.flatMap((turn, i) => ([...stringsOf(turn)].some((s) => found[s]) ? [i + 1] : []));
    return [...(about.some(hits) ? [0] : []), ...turns];
  });
};

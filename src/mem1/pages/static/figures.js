// The figures: Plotly draws specs made in Python, in the page's own colours and fonts.

// Replaces every "--name" in a spec by that variable's colour.
const colored = (value) => {
  if (typeof value === "string") return value.startsWith("--") ? colorOf(value) : value;
  if (Array.isArray(value)) return typeof value[0] === "object" ? value.map(colored) : value;
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, colored(inner)]));
};

const axisStyle = (axis, ink, grid) => ({ gridcolor: grid, linecolor: grid, zeroline: false, color: ink, automargin: true, ...axis });

const layoutOf = (spec) => {
  const [ink, grid, card] = ["--soft", "--line", "--card"].map(colorOf);
  const legend = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: ink, size: 11 }, bgcolor: "rgba(0,0,0,0)" };
  return {
    height: 330, margin: { l: 48, r: 12, t: 24, b: 44 }, hovermode: "closest", showlegend: true, legend,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
    hoverlabel: { bgcolor: card, font: { color: colorOf("--ink") }, align: "left" },
    ...spec.layout,
    xaxis: axisStyle(spec.layout.xaxis, ink, grid), yaxis: axisStyle(spec.layout.yaxis, ink, grid),
  };
};

const drawFigures = async () => {
  if (!byId("specs")) return;
  const specs = JSON.parse(await inflate("specs"));
  const source = make("script");
  source.textContent = await inflate("plotly");
  document.head.append(source);
  const plots = [...document.querySelectorAll(".plot")];
  const draw = (plot, i) =>
    Plotly.react(plot, colored(specs[i].data), layoutOf(specs[i]), { responsive: true, displaylogo: false, displayModeBar: false });
  for (const plot of plots) plot.replaceChildren();
  for (const [i, plot] of plots.entries()) {
    await draw(plot, i);
    if (i) continue;
    document.documentElement.dataset.firstFigureMs = Math.round(performance.now());
    await shown();
  }
  themeListeners.push(() => plots.forEach(draw));
};

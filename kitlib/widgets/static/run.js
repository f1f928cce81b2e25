// A run: figures, curves by rank, pods, events, the merged log.

function runView(model, root) {
  const key = `ty-${Math.random().toString(36).slice(2)}`;
  const facts = element("dl", { class: "ty-figures" });
  const charts = element("div", { class: "ty-charts" });
  const side = element("div", { class: "ty-side" });
  const pods = element("table");
  const events = element("table", { class: "ty-words" });
  const latest = element("table");
  const epochs = element("table");
  const log = element("pre", { class: "ty-log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Merged log of all workers" });
  const main = element("div", { class: "ty-main" });
  charts.append(main, side);
  root.append(
    facts,
    charts,
    element("div", { class: "ty-columns" },
      section("Pods", element("div", { class: "ty-wide" }, pods)),
      section("Events", element("div", { class: "ty-wide" }, events))),
    section("Log of all workers, by time", log),
    element("details", {}, element("summary", {}, "The curves as tables"),
      element("div", { class: "ty-columns" },
        section("Latest by rank", latest), section("Epochs", epochs))),
  );

  const loss = new Chart(main, { label: "Loss by rank", height: 250, syncKey: key, xAxis: false, empty: "no steps reported yet" });
  const world = new Chart(main, { label: "World size", height: 86, syncKey: key, xLabel: "step", band: true, zero: true, legend: false, empty: " " });
  const rate = new Chart(side, { label: "Images per second, all ranks", height: 150, syncKey: key, xLabel: "step", zero: true, legend: false, empty: "not reported" });
  const byEpoch = new Chart(side, { label: "Loss by epoch", height: 150, xLabel: "epoch", legend: false, optional: true });
  let gpu = null;

  function look(theme, rank) {
    const [colour, dashes] = theme.styles[rank % theme.styles.length];
    return { colour: theme.lines[colour], dashes };
  }

  function drawCurves(theme) {
    const frame = readFrame(model);
    const { names = {} } = model.get("facts") || {};
    const x = frame.step?.[0][1] || [];
    const ranks = frame.loss || [];
    const few = ranks.length <= 8;
    const lines = ranks.map(([rank, values]) => ({
      ...look(theme, rank), label: names[rank], values, width: few ? 1.25 : 0.6, ...(few ? {} : { dashes: [] }),
    }));
    lines.push({ label: "smoothed", values: frame.smooth?.[0][1] || [], colour: theme.main, width: 2.25, dashes: [] });
    if (frame.validation) lines.push({ label: "validation", values: frame.validation[0][1], colour: theme.bad, width: 1.4, dashes: [4, 4], points: true });
    loss.show(x, lines, theme);
    world.show(x, [{ label: "ranks", values: frame.world?.[0][1] || [], colour: theme.lines[0], fill: `${theme.lines[0]}44`, stepped: true }], theme);
    rate.show(x, [{ label: "images/s", values: frame.rate?.[0][1] || [], colour: theme.lines[2], width: 1.75 }], theme);
    if (frame.gpu?.length) {
      gpu ||= new Chart(side, { label: "GPU by rank", height: 150, syncKey: key, unit: "%", xLabel: "step", zero: true, top: 100, legend: false });
      gpu.show(x, frame.gpu.map(([rank, values]) => ({ ...look(theme, rank), label: names[rank], values })), theme);
    }
    loss.describe(`${ranks.length} ranks; ${model.get("summary")}`);
  }

  function drawEpochs(theme) {
    const table = model.get("tables").epochs;
    const numbers = columnOf(table, "epoch");
    const losses = columnOf(table, "mean loss");
    byEpoch.show(numbers, [{ label: "loss", values: losses.map((text) => Number(text.replaceAll(",", ""))), colour: theme.lines[3], width: 1.75, points: true }], theme);
    byEpoch.describe(numbers.map((number, index) => `epoch ${number}: ${losses[index]}`).join(", "));
  }

  function drawTables() {
    const tables = model.get("tables");
    for (const [name, table] of Object.entries({ pods, events, latest, epochs })) fillTable(table, tables[name]);
    pods.classList.toggle("ty-no-why", !columnOf(tables.pods, "why").some(Boolean));
  }

  function drawLog(theme) {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
    log.replaceChildren(...(model.get("lines") || []).flatMap(([rank, time, text]) => [
      element("span", { class: "ty-quiet" }, `${time} `),
      element("b", { style: `color: ${look(theme, Number(/\d*$/.exec(rank)[0])).colour}` }, Number.isInteger(rank) ? `[rank ${rank}] ` : `[${rank}] `),
      `${text}\n`,
    ]));
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  return {
    draw: { curves: drawCurves, facts: (theme) => drawFacts(model, root, facts), tables: (theme) => { drawTables(); drawEpochs(theme); }, lines: drawLog },
    destroy: () => [loss, world, rate, byEpoch, gpu].forEach((chart) => chart?.destroy()),
  };
}

// Phase and figures, the same for all kinds.
function drawFacts(model, root, list) {
  const { figures = [], phase, words, notes = [], share, position } = model.get("facts") || {};
  const items = figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  items.unshift(element("div", { title: words || phase }, element("dt", {}, "phase"), element("dd", { "data-word": phase }, phase || "–")));
  if (position) items.splice(1, 0, element("div", {}, element("dt", {}, "progress"), element("dd", {}, position, Number.isFinite(share) ? element("progress", { value: share, "aria-label": "completed steps" }) : null)));
  list.replaceChildren(...items);
  const texts = [...notes, ...(phase === "Pending" || phase === "Failed" ? [words] : [])].filter(Boolean);
  root.querySelector(".ty-notes").textContent = texts.join(" · ");
}

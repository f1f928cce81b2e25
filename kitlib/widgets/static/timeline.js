// A run's timeline: marks, world size, worker states and loss over the same time axis.

const KINDS = ["training", "waiting", "hanging", "unknown"];
const LETTER = 6.3; // pixels, on average

function timelineView(model, root) {
  const key = `ty-${Math.random().toString(36).slice(2)}`;
  const facts = element("dl", { class: "ty-figures" });
  const labels = element("div", { class: "ty-marks", "aria-hidden": "true" });
  const lanes = element("div", { class: "ty-lanes", role: "img" });
  const legend = element("p", { class: "ty-kinds ty-quiet" }, ...KINDS.flatMap((kind) => [element("i", { class: `ty-span ty-${kind}` }), `${kind} `]));
  const stage = element("div", { class: "ty-stage" }, labels);
  const changes = element("table");
  root.append(facts, stage, section("Changes", element("div", { class: "ty-wide" }, changes)));
  const world = new Chart(stage, { label: "World size", height: 110, syncKey: key, xLabel: "seconds", xAxis: false, band: true, zero: true, top: 1.2, legend: false, empty: "no rendezvous yet" });
  stage.append(element("figure", {}, element("figcaption", {}, "Workers"), lanes, legend));
  const loss = new Chart(stage, { label: "Loss; dots are repeated steps", height: 170, syncKey: key, xLabel: "seconds", legend: false, empty: "no steps reported yet" });
  const over = element("div", { class: "ty-over" });
  world.box.append(over);

  const place = (part) => `calc(56px + (100% - 68px) * ${part})`; // the width between the charts' axes
  const width = (part) => `calc((100% - 68px) * ${part})`;
  const at = (part, name, more = {}) => element("div", { class: name, style: `left: ${place(part)}`, ...more });

  // From the right: later marks get lower labels, so no line crosses a label.
  function drawMarks(marks, length) {
    const room = Math.max(200, stage.clientWidth - 68);
    const set = [];
    for (const [time, label] of [...marks].reverse()) {
      const long = (label.length + 2) * LETTER;
      const begin = Math.max(0, Math.min((time / length) * room, room - long));
      const level = 1 + Math.max(-1, ...set.filter((mark) => mark.begin < begin + long || mark.x < begin + long).map((mark) => mark.level));
      set.push(level < 9 ? { time, label, level, begin, x: (time / length) * room } : { time, label: "", level: 0, begin, x: begin });
    }
    const levels = 1 + Math.max(0, ...set.map((mark) => mark.level));
    labels.style.height = `${15 * levels}px`;
    labels.replaceChildren(...set.flatMap(({ time, label, level, begin }) => [
      at(time / length, "ty-mark", { "data-level": level }),
      element("span", { style: `left: ${56 + begin + 3}px; bottom: ${15 * level}px` }, label),
    ]));
    set.forEach(({ level }, index) => { labels.children[2 * index].style.top = `${15 * (levels - 1 - level)}px`; });
  }

  function drawStage() {
    const { length = 1, marks = [], rounds = [], pauses = [], lanes: workers = [] } = model.get("facts");
    drawMarks(marks, length);
    over.replaceChildren(
      ...pauses.map(([begin, end, words, raised]) => {
        const made = at(begin / length, "ty-pause");
        made.style.width = width((end - begin) / length);
        made.append(element("span", { style: raised ? "top: 13px" : "" }, words)); // not over its neighbour
        return made;
      }),
      ...rounds.map(([time, number]) => { const made = at(time / length, "ty-round"); made.textContent = number; return made; }));
    lanes.replaceChildren(...workers.map(([worker, spans]) => element("div", { class: "ty-lane" },
      element("b", { title: worker }, worker),
      ...spans.map(([kind, begin, end]) => {
        const made = at(begin / length, `ty-span ty-${kind}`, { title: `${worker}: ${kind} for ${(end - begin).toFixed(1)} s` });
        made.style.width = width((end - begin) / length);
        return made;
      }))));
    lanes.setAttribute("aria-label", workers.map(([worker, spans]) => `${worker}: ${spans.at(-1)?.[0] || "gone"}`).join(", "));
  }

  function drawCurves(theme) {
    const { length = 1, world: [times, sizes] = [[], []] } = model.get("facts");
    const frame = readFrame(model);
    const ends = (values) => [null, ...(values || []), null];
    const x = frame.time?.[0][1] || [];
    world.show(times, [{ label: "world size", values: sizes, colour: theme.lines[0], fill: `${theme.lines[0]}44`, stepped: true, width: 1.75 }], theme);
    loss.show(x.length ? [0, ...x, length] : [], [
      { label: "loss", values: ends(frame.loss?.[0][1]), colour: theme.lines[3], width: 1.75 },
      { label: "repeated", values: ends(frame.again?.[0][1]), colour: theme.lines[4], width: 0.01, points: true },
    ], theme);
    loss.describe(model.get("summary"));
    world.describe(model.get("summary"));
  }

  const observer = new ResizeObserver(drawStage);
  observer.observe(stage);
  return {
    draw: {
      curves: drawCurves,
      facts: (theme) => { drawFacts(model, root, facts); drawStage(); drawCurves(theme); },
      tables: () => fillTable(changes, model.get("tables").changes),
    },
    destroy: () => { observer.disconnect(); world.destroy(); loss.destroy(); },
  };
}

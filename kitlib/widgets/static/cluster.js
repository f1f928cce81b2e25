// A cluster: resource usage of its nodes over time, and its pods.

function clusterView(model, root) {
  const key = `ty-${Math.random().toString(36).slice(2)}`;
  const facts = element("dl", { class: "ty-figures" });
  const charts = element("div", { class: "ty-pairs" });
  const nodes = element("table");
  const pods = element("table");
  const source = element("p", { class: "ty-quiet ty-source" });
  root.append(
    facts, charts, source,
    element("div", { class: "ty-pairs" },
      section("Nodes", element("div", { class: "ty-wide" }, nodes)),
      section("Pods", element("div", { class: "ty-wide" }, pods))),
  );
  const common = { height: 180, unit: " %", time: true, zero: true, syncKey: key, empty: "no figures yet" };
  const drawn = {};
  const LABELS = {
    cpu: { label: "CPU, share of the node's", top: 100 },
    memory: { label: "Memory, share of the node's", top: 10 },
    gpus: { label: "GPUs requested by pods, share of allocatable", top: 100 },
    gpu: { label: "GPUs busy, mean of the node's", top: 100 },
  };
  const chart = (kind) => (drawn[kind] ||= new Chart(charts, { ...common, ...LABELS[kind] }));
  chart("cpu");
  chart("memory");

  function drawCurves(theme) {
    const frame = readFrame(model);
    const { nodes: names = [], began = 0, source: from } = model.get("facts");
    const times = (frame.time?.[0][1] || []).map((seconds) => began + seconds);
    for (const kind of Object.keys(LABELS)) {
      const rows = frame[kind] || [];
      if (!rows.length && !drawn[kind]) continue;
      chart(kind).show(rows.length ? times : [], rows.map(([index, values]) => {
        const [colour, dashes] = theme.styles[index % theme.styles.length];
        return { label: names[index] || `node ${index}`, values, colour: theme.lines[colour], dashes: rows.length <= 8 ? dashes : [], width: 1.5 };
      }), theme);
      chart(kind).describe(rows.map(([index, values]) => `${names[index]} ${shown(values.at(-1), " %")}`).join(", "));
    }
    source.textContent = from ? `CPU and memory as reported by ${from}.` : "";
  }

  function drawTables() {
    const tables = model.get("tables");
    fillTable(nodes, tables.nodes);
    fillTable(pods, tables.pods);
    pods.classList.toggle("ty-no-why", !columnOf(tables.pods, "why").some(Boolean));
  }

  return {
    draw: { curves: drawCurves, facts: () => drawFacts(model, root, facts), tables: drawTables },
    destroy: () => Object.values(drawn).forEach((chart) => chart.destroy()),
  };
}

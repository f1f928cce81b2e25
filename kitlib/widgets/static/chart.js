// A line chart over uPlot: the front end's colours, a size that follows its box, arrow keys, a text description.

class Chart {
  // options: {label, height, unit, xLabel, time, band, zero, top, legend, syncKey}
  constructor(parent, options) {
    this.options = options;
    this.plot = null;
    this.shape = "";
    this.box = element("div", { class: "ty-plot", role: "img", tabindex: "0", "aria-label": options.label });
    this.empty = element("p", { class: "ty-empty ty-quiet" }, options.empty || "nothing yet");
    this.box.append(this.empty);
    this.figure = element("figure", {}, element("figcaption", {}, options.label), this.box);
    parent.append(this.figure);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.box);
  }

  // lines: [{label, values, colour, dashes, width, stepped, fill}]; theme: colours; x: rising numbers
  show(x, lines, theme) {
    const shape = JSON.stringify([theme.name, lines.map(({ values, ...look }) => look)]);
    const data = [x, ...lines.map((line) => line.values)];
    this.empty.hidden = x.length > 0;
    this.figure.hidden = Boolean(this.options.optional) && !x.length;
    if (shape !== this.shape || !this.plot) {
      this.shape = shape;
      this.plot?.destroy();
      this.plot = new uPlot(this.settings(lines, theme), data, this.box);
    } else {
      this.plot.setData(data);
    }
    requestAnimationFrame(() => this.resize()); // during a change of theme the box may have no width
  }

  settings(lines, theme) {
    const { options } = this;
    const font = `11px ${getComputedStyle(this.box).fontFamily}`;
    const axis = { stroke: theme.text, font, ticks: { show: false }, grid: { stroke: theme.grid, width: 1 } };
    const range = (_, low, high) => {
      if (low === null || high === null) return [0, 1];
      if (options.zero) return [0, Math.max(options.top || 0, high * 1.08) || 1];
      const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [low >= 0 ? Math.max(-room / 3, low - room) : low - room, high + room];
    };
    return {
      width: Math.max(120, this.box.clientWidth),
      height: options.height,
      padding: [10, 24, 0, 0], // the last label of an axis is centred on its end
      legend: { show: options.legend !== false && lines.length <= 10, live: true },
      cursor: { sync: options.syncKey ? { key: options.syncKey } : undefined, points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: Boolean(options.time), range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { range } },
      axes: [
        { ...axis, show: options.xAxis !== false, size: 24, gap: 3, label: options.xLabel, labelSize: 15, labelFont: font, labelGap: -3, incrs: options.time ? undefined : WHOLE, values: options.time ? (_, ticks) => ticks.map(clock) : undefined, space: 64 },
        { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => shown(tick, options.unit)), splits: options.band ? (plot) => [0, Math.max(1, ...plot.data[1])] : undefined, space: 28 },
      ],
      hooks: { draw: [() => requestAnimationFrame(() => this.newest())] },
      series: [
        { label: options.time ? "time" : options.xLabel || "step", value: (_, x) => (options.time ? clock(x) : shown(x)) },
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          width: line.width || 1.25,
          dash: line.dashes?.length ? line.dashes : undefined,
          fill: line.fill,
          paths: line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
          spanGaps: true,
          points: { show: Boolean(line.points), size: 7, fill: line.colour },
          value: (_, value) => shown(value, options.unit),
        })),
      ],
    };
  }

  // Without a cursor, the legend shows the newest values.
  newest() {
    if (!this.plot?.data[0].length || this.plot.cursor.left >= 0) return;
    this.plot.setLegend({ idxs: this.plot.data.map((values) => values.findLastIndex((value) => value !== null)) });
  }

  resize() {
    const width = this.box.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.options.height });
  }

  // Arrow keys move the cursor from point to point; the legend shows its values.
  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!move || !this.plot || !this.plot.data[0].length) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook would go to another cell
    const last = this.plot.data[0].length - 1;
    const index = Math.min(last, Math.max(0, (this.plot.cursor.idx ?? last) + move));
    this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][index], "x"), top: this.options.height / 3 });
  }

  describe(text) {
    this.box.setAttribute("aria-label", `${this.options.label}: ${text}`);
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
  }
}

function clock(seconds) {
  return seconds === null || seconds === undefined ? "–" : new Date(1000 * seconds).toLocaleTimeString("en-GB");
}

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];

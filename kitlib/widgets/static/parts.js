// Shared by the live views: elements, tables, the front end's colours, formatted numbers.

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// The table's body is replaced only when its rows have changed, so that a selection in it stays.
function fillTable(table, { columns, rows, empty } = { columns: [], rows: [], empty: "" }) {
  const state = JSON.stringify([rows, empty]);
  if (table.dataset.state === state) return;
  table.dataset.state = state;
  const head = element("tr", {}, ...columns.map((column) => element("th", { scope: "col", "data-column": column }, column)));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, index) => {
      const text = cell === null || cell === "" ? "–" : String(cell);
      const word = ["phase", "type", "status"].includes(columns[index]);
      return element("td", { "data-column": columns[index], "data-word": word ? text : undefined }, text);
    })));
  if (!body.length) body.push(element("tr", {}, element("td", { colspan: columns.length, class: "ty-quiet" }, empty)));
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

// The values of a column of a table, by its name.
function columnOf(table, name) {
  const index = table?.columns.indexOf(name) ?? -1;
  return index < 0 ? [] : table.rows.map((row) => row[index]);
}

function section(title, ...children) {
  return element("section", { "aria-label": title }, element("h4", {}, title), ...children);
}

// The luminance, 0 to 1, of a computed CSS colour.
function luminance(colour) {
  const [red, green, blue] = (colour.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
  return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255;
}

// Dark or light by the front end's own colours; if it sets none, by the system's setting.
function themeOf(root) {
  const probe = element("span", { style: "color: var(--jp-layout-color0, var(--vscode-editor-background, transparent))" });
  root.append(probe);
  const ground = getComputedStyle(probe).color;
  probe.remove();
  if (/, 0\)$/.test(ground)) return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  return luminance(ground) < 0.5 ? "dark" : "light";
}

// Calls back when the front end changes its colours; returns a function that stops this.
function onThemeChange(call) {
  const observer = new MutationObserver(call);
  for (const element of [document.documentElement, document.body]) {
    observer.observe(element, { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind"] });
  }
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", call);
  return () => {
    observer.disconnect();
    system.removeEventListener("change", call);
  };
}

// The rows of a frame by their name: {loss: [[rank, values], …], …}; NaN becomes null, a gap.
function readFrame(model) {
  const view = model.get("frame");
  const { rows = [], columns = 0 } = model.get("layout_of_frame") || {};
  const bytes = view ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength).slice() : new Uint8Array();
  const numbers = new Float32Array(bytes.buffer);
  const byName = {};
  if (numbers.length < rows.length * columns) return byName;
  rows.forEach(([name, number], index) => {
    const values = Array.from(numbers.subarray(index * columns, (index + 1) * columns), (number) => (Number.isNaN(number) ? null : number));
    (byName[name] ||= []).push([number, values]);
  });
  return byName;
}

function shown(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const digits = size >= 1000 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 3 : 5;
  return value.toLocaleString("en", { maximumFractionDigits: digits }) + unit;
}

// The way in: one view of a model. All state is in the model; a view only draws it, and may come and go.

const TRAITS = { curves: ["frame"], facts: ["facts"], tables: ["tables"], lines: ["lines"] };
const SPOKEN_SECONDS = 10; // a screen reader shall not be kept talking

function render({ model, el }) {
  const id = Math.random().toString(36).slice(2);
  const title = element("h3", {});
  const spoken = element("p", { class: "ty-spoken", role: "status", "aria-live": "polite" });
  const root = element("div", { class: "ty-watch" }, element("header", {}, title, element("p", { class: "ty-notes" })), spoken);
  el.append(root);
  const views = { cluster: clusterView, run: runView, timeline: timelineView, workshop: workshopView };
  const view = views[model.get("kind")](model, root);
  let theme = {};

  function recolour() {
    const name = themeOf(root);
    const colours = model.get("palette");
    root.dataset.theme = name;
    theme = { name, ...colours[name], styles: colours.styles };
  }

  function drawAll() {
    recolour();
    for (const draw of Object.values(view.draw)) {
      try {
        draw(theme);
      } catch (error) {
        console.error(error); // one part that cannot be drawn yet shall not leave the others empty
      }
    }
  }

  const listeners = [];
  function on(event, call) {
    model.on(event, call);
    listeners.push([event, call]);
  }
  for (const [part, traits] of Object.entries(TRAITS)) {
    traits.forEach((trait) => on(`change:${trait}`, () => theme.name && view.draw[part]?.(theme)));
  }

  let spokenAt = 0;
  function speak() {
    const { title: name, about, finished, phase } = model.get("facts") || {};
    const called = { cluster: "Cluster", workshop: "Workshop on" };
    title.textContent = `${called[model.get("kind")] || "Run"} ${name || ""}`;
    root.setAttribute("role", "region");
    root.setAttribute("aria-label", about || "");
    root.dataset.finished = Boolean(finished);
    const now = Date.now() / 1000;
    if (now - spokenAt > SPOKEN_SECONDS || spoken.dataset.phase !== phase) {
      spokenAt = now;
      spoken.dataset.phase = phase;
      spoken.textContent = model.get("summary");
    }
  }
  on("change:facts", speak);

  const endTheme = onThemeChange(() => themeOf(root) !== root.dataset.theme && drawAll());
  speak();
  requestAnimationFrame(drawAll); // not before it has a width
  model.send({ event: "opened", view: id });
  return () => {
    listeners.forEach(([event, call]) => model.off(event, call));
    endTheme();
    view.destroy();
    model.send({ event: "closed", view: id });
  };
}

export default { render };

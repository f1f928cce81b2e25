// A workshop: how far everybody is, and a row for each with what does not go well.

function workshopView(model, root) {
  const facts = element("dl", { class: "ty-figures" });
  const progress = element("table", { class: "ty-progress" });
  const people = element("table");
  root.append(
    facts,
    section("Who is where", element("div", { class: "ty-wide ty-tall" }, people)),
    section("How far everybody is", element("div", { class: "ty-wide ty-tall" }, progress)),
  );

  function drawPeople() {
    const { attendees } = model.get("tables");
    fillTable(people, attendees);
    const trouble = columnOf(attendees, "trouble");
    people.querySelectorAll("tbody tr").forEach((line, index) => line.toggleAttribute("data-trouble", Boolean(trouble[index])));
  }

  function drawProgress() {
    const { columns = [], progress: rows = [] } = model.get("facts");
    const state = JSON.stringify([columns, rows]);
    if (progress.dataset.state === state) return;
    progress.dataset.state = state;
    const head = element("tr", {}, ...["attendee", ...columns].map((each) => element("th", { scope: "col" }, each)));
    const body = rows.map(([name, ...shares]) =>
      element("tr", {}, element("td", {}, name), ...shares.map((share) => {
        const word = share < 0 ? "failed" : share === 1 ? "finished" : share ? "on the way" : "not begun";
        const full = element("i", { "data-share": word, style: `width: ${100 * Math.abs(share)}%` });
        const label = `${word}, ${Math.round(100 * Math.abs(share))} %`;
        return element("td", {}, element("span", { class: "ty-bar", role: "img", "aria-label": label, title: label }, full));
      })));
    progress.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
  }

  return {
    draw: {
      facts: () => {
        drawFacts(model, root, facts);
        drawProgress();
      },
      tables: drawPeople,
    },
    destroy: () => {},
  };
}

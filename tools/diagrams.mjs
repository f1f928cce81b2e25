// Renders docs/diagrams/*.d2 as docs/images/*.svg, light and dark in one file: `tools/dev.py diagrams`.
// Each picture names the SHA-256 of its source, by which tests/unit/test_diagrams.py knows that it is current.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { D2 } from "@terrastruct/d2";

const d2 = new D2();
const looks = { themeID: 0, darkThemeID: 200, pad: 12, scale: 1 }; // with a size, or pages show them as wide as they are
for (const name of readdirSync("docs/diagrams").filter((each) => each.endsWith(".d2"))) {
  const source = readFileSync(`docs/diagrams/${name}`, "utf8");
  const layout = source.match(/^# layout: (\w+)/)[1];
  const { diagram, renderOptions } = await d2.compile(source, { layout, ...looks });
  const picture = await d2.render(diagram, { ...renderOptions, ...looks });
  const hash = createHash("sha256").update(source).digest("hex");
  writeFileSync(`docs/images/${name.replace(".d2", ".svg")}`, `${picture.trimEnd()}\n<!-- source: ${hash} -->\n`);
}
process.exit(0); // its worker goes on otherwise

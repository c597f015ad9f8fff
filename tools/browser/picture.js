// The picture on the book's first page, of the pages and stories that take its place: `node tools/browser/picture.js`,
// after tools/browser/setup and `cargo book build`.

import { fileURLToPath } from "node:url";

import { start } from "./browser.js";
import { picture } from "./places.js";
import { serve } from "./site.js";

const book = (file) => fileURLToPath(new URL(`../../book/${file}`, import.meta.url));
const site = await serve(book("html"));
const browser = await start();
for (const [theme, name] of [["light", "light"], ["navy", "dark"]]) {
  const file = book(`src/figures/live-${name}.png`);
  await picture(browser, site.address, theme, file);
  console.log(`wrote ${file}`);
}
await browser.close();
site.stop();

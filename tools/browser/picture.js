// The picture of the live page on the book's first page: `node tools/browser/picture.js target/release/page-by-page`, after
// tools/browser/ready. Eight sequences run, so each time the picture differs a little.

import { fileURLToPath } from "node:url";

import { start } from "./browser.js";
import { picture } from "./live.js";

const browser = await start();
for (const colorScheme of ["light", "dark"]) {
  const file = fileURLToPath(new URL(`../../book/src/figures/live-${colorScheme}.png`, import.meta.url));
  await picture(browser, process.argv[2], colorScheme, file);
  console.log(`wrote ${file}`);
}
await browser.close();

// Reads the rendered book in a browser, page by page, as readers do: on a wide and a narrow window, in light and dark, with
// mouse, keys and fingers, on paper, from a file, without script; then the page of the server, while it generates. Says what
// is wrong, then `N passed, N failed`.
//
//   tools/browser/run [--only TEXT]

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { start } from "./browser.js";
import { checks } from "./checks.js";
import { liveChecks } from "./live.js";
import { placeChecks } from "./places.js";
import { publishedChecks } from "./published.js";
import { serve } from "./site.js";

/** At the same time. More than the cores, as pages also wait. */
const WORKERS = 4;
const TIME_LIMIT_MS = 120_000;

const { values: options } = parseArgs({ options: { only: { type: "string", default: "" } } });

const folder = fileURLToPath(new URL("../../book/html", import.meta.url));
const toc = await readFile(join(folder, "toc.html"), "utf8").catch(() => {
  console.error(`no book in ${folder}: render it with cargo book build`);
  process.exit(2);
});
const pages = [...new Set([...toc.matchAll(/<a href="([^"#]+\.html)"/g)].map((match) => match[1]))];
const figures = {};
const places = [];
for (const page of pages) {
  const html = await readFile(join(folder, page), "utf8");
  if (html.includes('class="pbp-live"')) {
    places.push(page);
  }
  figures[page] = html.split("<figure class=\"pbp-figure\"").length - 1;
}

const { PUBLISHED: published, PROGRAM: program } = process.env;
const site = await serve(folder);
const browser = await start();
const all = checks({ browser, address: site.address, pages, figures });
all.push(...publishedChecks({ browser, folder: published, pages, figures }));
all.push(...placeChecks({ browser, address: site.address, pages: places, published, program }));
all.push(...liveChecks({ browser, program }));
const waiting = all.filter(([name]) => name.includes(options.only));
let passed = 0;
let failed = 0;

async function work() {
  for (let next = waiting.shift(); next; next = waiting.shift()) {
    const [name, run] = next;
    const faults = await Promise.race([
      run().catch((error) => [error.message]),
      new Promise((done) => setTimeout(done, TIME_LIMIT_MS, ["takes too long"]).unref()),
    ]);
    if (faults?.length) {
      failed += 1;
      console.log(`FAILED ${name}\n${faults.map((fault) => `    ${fault.replaceAll("\n", "\n    ")}`).join("\n")}`);
    } else {
      passed += 1;
    }
  }
}

await Promise.all(Array.from({ length: WORKERS }, work));
await browser.close();
site.stop();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 && passed > 0 ? 0 : 1);

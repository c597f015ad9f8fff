// Reads the rendered book in a browser, page by page, as readers do: on a wide and a narrow window, in light and dark,
// with mouse, keys and fingers, on paper, from a file, without script; then the page of the server, while it generates.
//
//   tools/browser/run [--test-name-pattern "the live page"]

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import { start } from "./browser.js";
import { bookChecks } from "./checks.js";
import { liveChecks } from "./live.js";
import { placeChecks } from "./places.js";
import { publishedChecks } from "./published.js";
import { serve } from "./site.js";

/** At the same time. More than the cores, as pages also wait. */
const CHECKS = 4;
/** Of a check that hangs: on a busy machine, one that generates to the end can take more than a minute. */
const TIME_LIMIT_MS = 300_000;

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

/** A check throws, or returns a list of what is wrong. */
function check(name, run) {
  test(name, { timeout: TIME_LIMIT_MS }, async () => {
    const faults = (await run()) ?? [];
    if (faults.length > 0) {
      throw new Error(faults.join("\n"));
    }
  });
}

describe("the book in a browser", { concurrency: CHECKS }, () => {
  after(async () => {
    await browser.close();
    site.stop();
  });
  bookChecks(check, { browser, address: site.address, pages, figures });
  publishedChecks(check, { browser, folder: published, pages, figures });
  placeChecks(check, { browser, address: site.address, pages: places, published, program });
  liveChecks(check, { browser, program });
});

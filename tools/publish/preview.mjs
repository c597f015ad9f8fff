// The picture that link previews show: the book's title beside the server's live page.
//
//   node tools/publish/preview.mjs --book FOLDER --to FILE.png

import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

import { inWindow, start } from "../browser/browser.js";

const SIZE = { width: 1200, height: 630 };
const STYLE = `
  html, body { margin: 0; background: #fff; }
  .card {
    box-sizing: border-box; width: ${SIZE.width}px; height: ${SIZE.height}px; overflow: hidden;
    display: grid; grid-template-columns: 1fr 480px; align-items: center;
    color: #1c1d20; background: #f4f5f7; border-block-end: 14px solid #0b4a8a;
    font-family: "Open Sans", sans-serif;
  }
  .card > div { padding-inline-start: 72px; }
  .card b { display: block; font-size: 96px; line-height: 1.05; letter-spacing: -0.02em; }
  .card p { margin: 28px 0 0; font-size: 36px; line-height: 1.35; max-width: 12em; text-wrap: balance; }
  .card .figure { align-self: stretch; overflow: hidden; padding: 0; background: #fff; }
  .card img { display: block; height: 100%; width: 100%; object-fit: cover; object-position: left; }
`;

const { values: options } = parseArgs({ options: { book: { type: "string" }, to: { type: "string" } } });
const folder = resolve(options.book);
// The page for printing has the description of the whole book.
const general = await readFile(join(folder, "print.html"), "utf8");
const subtitle = /<meta name="description" content="([^"&<]+)">/.exec(general)?.[1];
if (!subtitle) throw new Error("print.html has no description");
const browser = await start();
try {
  const faults = await inWindow(browser, { viewport: SIZE }, async (tab) => {
    await tab.goto(pathToFileURL(join(folder, "index.html")).href);
    await tab.evaluate(async ({ style, subtitle }) => {
      const title = document.querySelector("main h1").textContent.trim();
      document.documentElement.className = "light";
      document.body.innerHTML = `<style>${style}</style><div class="card"><div><b>${title}</b><p>${subtitle}</p></div>
        <div class="figure"><img src="figures/live-light.png" alt=""></div></div>`;
      await document.fonts.ready;
      await document.querySelector("img").decode();
    }, { style: STYLE, subtitle });
    await tab.screenshot({ path: options.to, animations: "disabled" });
  });
  if (faults.length > 0) throw new Error(faults.join("\n"));
} finally {
  await browser.close();
}

// The picture that link previews show: the book's title beside the figure of its first page, or its picture.
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
  .card .figure { align-self: stretch; overflow: hidden; padding: 11px 40px 0; background: #fff; }
  .card svg { display: block; width: 100%; height: auto; max-width: none !important; color: #1c1d20; }
  .card img { display: block; width: auto; height: 100%; }
  .card svg text { font-family: "Open Sans", sans-serif; }
  svg .pbp-band { display: none; }
`;

const { values: options } = parseArgs({ options: { book: { type: "string" }, to: { type: "string" } } });
const folder = resolve(options.book);
// The page for printing has the description of the whole book.
const general = await readFile(join(folder, "print.html"), "utf8");
const subtitle = /<meta name="description" content="([^"&<]+)">/.exec(general)?.[1];
if (!subtitle) throw new Error("print.html has no description");
const browser = await start();
try {
  const faults = [];
  await inWindow(browser, { faults, viewport: SIZE }, async (tab) => {
    await tab.goto(pathToFileURL(join(folder, "index.html")).href);
    await tab.evaluate(async ({ style, subtitle }) => {
      const title = document.querySelector("main h1").textContent.trim();
      const figure = document.querySelector("main figure[data-figure] svg") ?? document.querySelector("main img.pbp-light");
      figure.removeAttribute("style");
      document.documentElement.className = "light";
      document.body.innerHTML = `<style>${style}</style><div class="card"><div><b>${title}</b><p>${subtitle}</p></div>
        <div class="figure">${figure.outerHTML}</div></div>`;
      await document.fonts.ready;
      await document.querySelector(".figure img")?.decode();
    }, { style: STYLE, subtitle });
    await tab.screenshot({ path: options.to, animations: "disabled" });
  });
  if (faults.length > 0) throw new Error(faults.join("\n"));
} finally {
  await browser.close();
}

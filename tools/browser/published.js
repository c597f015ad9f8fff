// What must hold of the book as it is published (tools/publish/run), made for https://example.org/page-by-page/: it
// works opened as files and below that path, and all that it links to is there.

import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { inWindow } from "./browser.js";
import { steps } from "./checks.js";
import { serve } from "./site.js";

const SITE = "https://example.org/page-by-page/";
const PATH = new URL(SITE).pathname;

export function publishedChecks(check, { browser, folder, pages, figures }) {
  const withFigures = pages.filter((page) => figures[page] > 0);
  const visited = (address) => inWindow(browser, {}, (tab, faults) => visit(tab, faults, address, pages, withFigures.at(-1)));
  check("published: every link leads somewhere", () => links(folder));
  check("published: each page says what it is and has", () => descriptions(folder, pages));
  check("published: opened as files", () => visited(pathToFileURL(join(folder, "/")).href));
  check("published: below a path", async () => {
    const site = await serve(folder, PATH);
    try {
      return [...(await visited(site.address)), ...(await lost(browser, site.address, pages))];
    } finally {
      site.stop();
    }
  });
}

/** Reads the first page, turns it, steps a figure, searches and follows what was found. */
async function visit(tab, faults, address, pages, page) {
  tab.on("requestfailed", (request) => faults.push(`fails: ${request.url()}`));
  await tab.goto(`${address}index.html`);
  assert.ok(await tab.evaluate(() => document.fonts.ready.then((fonts) => [...fonts].some((font) => font.status === "loaded"))), "no font");
  await tab.locator(`#mdbook-sidebar a[href$="${pages[1]}"]`).first().click();
  await tab.waitForURL(address + pages[1]);
  await tab.goBack();
  await tab.keyboard.press("ArrowRight");
  await tab.waitForURL(address + pages[1]);
  await steps(tab, address, page);
  await tab.keyboard.press("Escape");
  await tab.locator("h1").first().click();
  await tab.keyboard.press("/");
  const field = tab.locator("#mdbook-searchbar");
  await field.fill("page table");
  await field.press("Shift");
  await tab.locator("#mdbook-searchresults a", { hasText: "The page table" }).first().click();
  await tab.waitForURL((url) => url.href.startsWith(`${address}ch05_page_table.html`));
  // What was searched for is marked.
  await tab.locator("main mark").first().waitFor();
}

/** A wrong address, also one deep below the book: styled, and with links that lead back. */
async function lost(browser, address, pages) {
  const found = [];
  for (const wrong of ["nowhere.html", "deep/down/nowhere.html"]) {
    const faults = await inWindow(browser, {}, async (tab) => {
      const answer = await tab.goto(address + wrong);
      assert.equal(answer.status(), 404);
      assert.match(await tab.locator("main h1").textContent(), /not found/i);
      await tab.locator(`#mdbook-sidebar a[href$="${pages[1]}"]`).first().click();
      await tab.waitForURL(address + pages[1]);
    });
    // The browser notes that this page itself was answered with 404, as it should be.
    found.push(...faults.filter((fault) => !fault.includes(wrong) && !fault.includes("status of 404")));
  }
  return found;
}

/**
 * Links, pictures, styles and scripts of all pages, those of sitemap.xml and llms.txt, and those of the Markdown. Whether a
 * page has the heading that a link names is for `cargo book build` to say.
 */
async function links(folder) {
  const files = new Set((await readdir(folder, { recursive: true })).map((file) => file.replaceAll("\\", "/")));
  const faults = [];
  let followed = 0;
  for (const file of files) {
    const ending = /^[^/]+\.(html|md|xml|txt)$/.exec(file)?.[1];
    if (!ending) continue;
    const patterns = { html: /\s(?:href|src|content)="([^"]*)"/g, xml: /<loc>([^<]*)</g };
    const text = await readFile(join(folder, file), "utf8");
    const linked = ending === "html" ? text.replace(/\scontent="(?!https?:)[^"]*"/g, "") : text.replace(/^ *```[\s\S]*?^ *```/gm, "");
    for (const [, written] of linked.matchAll(patterns[ending] ?? /\]\(([^)\s]+)/g)) {
      const target = new URL(written.replaceAll("&amp;", "&"), SITE + file);
      if (!target.href.startsWith(SITE)) {
        if (target.origin === new URL(SITE).origin) faults.push(`${file}: ${written} leads out of the book`);
        continue;
      }
      followed += 1;
      const name = decodeURIComponent(target.href.slice(SITE.length).split(/[?#]/)[0]) || "index.html";
      if (!files.has(name)) faults.push(`${file}: ${written} is not there`);
    }
  }
  assert.ok(followed > 1000, `only ${followed} links: nothing is looked at`);
  return faults;
}

async function descriptions(folder, pages) {
  const faults = [];
  const seen = new Map();
  for (const page of pages) {
    const html = await readFile(join(folder, page), "utf8");
    const found = [...html.matchAll(/<meta name="description" content="([^"]*)">/g)].map((match) => match[1]);
    const text = found[0]?.replace(/&(amp|quot|lt|gt);/g, "x") ?? "";
    for (const part of ['property="og:image"', 'rel="canonical"', 'href="page-by-page.pdf"', `href="${page}.md"`]) {
      if (html.split(part).length !== 2) faults.push(`${page}: not one ${part}`);
    }
    if (found.length !== 1 || text.length < 60 || text.length > 160) faults.push(`${page}: ${found.length}, of ${text.length}: ${text}`);
    if (seen.has(text)) faults.push(`${page} is described as ${seen.get(text)} is`);
    seen.set(text, page);
  }
  return faults;
}

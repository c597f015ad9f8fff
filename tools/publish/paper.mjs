// The whole book as a PDF, from the page that mdBook makes for printing: title and contents with page numbers in front,
// hints and answers at the end of each chapter, as paper cannot be folded, and each reference with the page that it
// leads to.
//
//   node tools/publish/paper.mjs --book FOLDER --to FILE.pdf [--site-url URL]

import { execFileSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

import { inWindow, start } from "../browser/browser.js";

const { values: options } = parseArgs({
  options: {
    book: { type: "string" },
    to: { type: "string" },
    "site-url": { type: "string", default: "" },
  },
});
const site = options["site-url"] && `${options["site-url"].replace(/\/*$/, "")}/`;
const style = await readFile(new URL("paper.css", import.meta.url), "utf8");

const PRINTING = { preferCSSPageSize: true, printBackground: false, outline: true, tagged: true };
/** The second printing has the numbers of the first, and is the last unless they have moved a line to another page. */
const PRINTINGS = 5;

/** In the page: rearranges the book for paper. Returns what is wrong. */
function rearrange({ site, style }) {
  const faults = [];
  const make = (name, { text, html, ...more } = {}, ...children) => {
    const element = Object.assign(document.createElement(name), more);
    if (text !== undefined) element.textContent = text;
    if (html !== undefined) element.innerHTML = html;
    element.append(...children);
    return element;
  };
  const main = document.querySelector("main");
  // It ends with what it is a reference to; the numbers are filled in when they are known.
  const page = (id) => {
    const number = make("span", { className: "paper-page", text: "000" });
    number.dataset.of = id;
    return number;
  };

  // mdBook puts an empty box with a page break between two of its pages.
  const leaves = [];
  let leaf;
  for (const node of [...main.childNodes]) {
    const isBreak = node.nodeName === "DIV" && node.childNodes.length === 0 && node.style.breakBefore === "page";
    if (!leaf || isBreak) {
      leaf = make("section", { className: "paper-leaf" });
      leaves.push(leaf);
    }
    if (isBreak) node.remove();
    else leaf.append(node);
  }
  main.replaceChildren(...leaves);

  const entries = [...document.querySelectorAll("#mdbook-sidebar .part-title, #mdbook-sidebar a[href$='.html']:not(.toggle)")];
  const contents = make("nav", { className: "paper-contents" }, make("h2", { text: "Contents" }));
  let list = contents.appendChild(make("ol"));
  let rules = "";
  let at = 0;
  let sheets = 0;
  for (const entry of entries) {
    if (entry.classList.contains("part-title")) {
      contents.append(make("p", { text: entry.textContent }));
      list = contents.appendChild(make("ol"));
      continue;
    }
    const title = entry.textContent.trim();
    const id = leaves[at]?.querySelector("h1")?.id;
    if (!id) faults.push(`${title}: no heading`);
    list.append(make("li", {}, make("a", { href: `#${id}` }, make("span", { text: title }), page(id))));
    // Pages below another one, such as the solutions, follow it without a break.
    const isBelow = entry.closest("ol.section") !== null;
    if (!isBelow) sheets = at;
    leaves[at]?.style.setProperty("page", `leaf${sheets}`);
    leaves[at]?.classList.toggle("paper-below", isBelow);
    rules += `@page leaf${at} { @top-right { content: ${JSON.stringify(title)}; color: #505050; font: 9pt "Open Sans", sans-serif; } }\n`;
    at += 1;
  }
  if (at !== leaves.length) faults.push(`${at} pages are listed, ${leaves.length} are printed`);

  // Hints and answers go to the end of their page, the question stays where it is.
  for (const [number, leaf] of leaves.entries()) {
    const end = [];
    let hints = 0;
    for (const fold of leaf.querySelectorAll("details.predict, details.hint, details.answer")) {
      const isHint = fold.classList.contains("hint");
      const summary = fold.querySelector(":scope > summary");
      const id = `paper-${number}-${end.length}`;
      const where = make("a", { href: `#${id}`, text: isHint ? "page\u00a0" : "Answer: page\u00a0" }, page(id));
      const task = [...leaf.querySelectorAll("h2, h3")].filter((h) => h.compareDocumentPosition(fold) & Node.DOCUMENT_POSITION_FOLLOWING).at(-1);
      const asks = make("p", { className: "paper-asks", html: isHint ? `${summary.innerHTML}: ` : `${summary.innerHTML} ` }, where);
      const heading = isHint ? `${task?.textContent.trim() ?? ""}, ${summary.innerHTML.replace(/^H/, "h")}` : summary.innerHTML;
      summary.remove();
      const answer = make("div", { className: "paper-answer" }, make("p", { id, html: `<b>${heading}</b>` }), ...fold.childNodes);
      fold.replaceWith(asks);
      end.push(answer);
      hints += isHint;
    }
    if (end.length > 0) {
      leaf.append(make("h2", { text: hints > 0 ? "Hints and answers" : "Answers" }), ...end);
    }
  }
  for (const fold of main.querySelectorAll("details")) fold.open = true;

  for (const code of main.querySelectorAll("pre > code")) {
    if (code.textContent.split("\n").length > 24) code.parentElement.classList.add("paper-long");
  }

  // A link to a file on this computer would be one to nowhere.
  for (const link of main.querySelectorAll("a[href]")) {
    const href = link.getAttribute("href");
    if (href.startsWith("#")) {
      const target = document.getElementById(decodeURIComponent(href.slice(1)));
      const from = link.closest("section.paper-leaf");
      if (!target) faults.push(`a link to ${href}, which is not there`);
      else if (from && target.closest("section.paper-leaf") !== from && !link.querySelector(".paper-page")) {
        link.append(" (page\u00a0", page(target.id), ")");
      }
    } else if (!/^(https?:|mailto:)/.test(href)) {
      if (site) link.href = new URL(href, site).href;
      else link.removeAttribute("href");
    }
  }

  const name = leaves[0].querySelector("h1").textContent.trim();
  const licence = "Text and figures: CC BY 4.0. Code: MIT or Apache-2.0, at your choice.";
  const says = document.querySelector('meta[name="description"]').content;
  const title = make("div", { className: "paper-title" }, make("b", { text: name }), make("p", { text: says }));
  const small = make("small", { text: licence });
  if (site) small.prepend(make("a", { href: site, text: site }), make("br"));
  title.append(small);
  main.prepend(title, contents);
  document.documentElement.className = "light";
  document.title = name;
  document.head.append(make("style", { text: style + rules }));
  return faults;
}

/** Page numbers by name, as pdfinfo lists them: `  61 [ XYZ ... ] "the-page-table"`. */
function places(file) {
  const list = execFileSync("pdfinfo", ["-dests", file], { maxBuffer: 1 << 26 }).toString();
  return Object.fromEntries([...list.matchAll(/^\s*(\d+)\s+\[.*?\]\s+"(.*)"$/gm)].map(([, page, name]) => [name, page]));
}

/** In the page: fills numbers in. Returns how many have changed, and what has none. */
function number(known) {
  const places = [...document.querySelectorAll(".paper-page")];
  const missing = places.map((place) => place.dataset.of).filter((id) => known[id] === undefined);
  const changed = places.filter((place) => place.textContent !== known[place.dataset.of]);
  changed.forEach((place) => (place.textContent = known[place.dataset.of]));
  return { changed: changed.length, missing };
}

const browser = await start();
try {
  const faults = await inWindow(browser, { prepare: () => (window.print = () => {}) }, async (tab) => {
    await tab.goto(pathToFileURL(join(resolve(options.book), "print.html")).href);
    const faults = await tab.evaluate(rearrange, { site, style });
    let found = { changed: 1, missing: [] };
    for (let printing = 0; found.changed > 0 && printing < PRINTINGS; printing += 1) {
      await tab.pdf({ ...PRINTING, path: options.to, timeout: 0 });
      found = await tab.evaluate(number, places(options.to));
    }
    faults.push(...found.missing.map((id) => `no page has #${id}`));
    return found.changed > 0 ? [...faults, `${found.changed} page numbers still move`] : faults;
  });
  if ((await readFile(options.to, "latin1")).includes("/URI (file:")) faults.push("a link leads to a file of this computer");
  if (faults.length > 0) throw new Error([...new Set(faults)].join("\n"));
} finally {
  await browser.close();
}

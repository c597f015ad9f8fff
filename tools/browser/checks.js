// What must hold in a reader's browser.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

import { NARROW, WIDE, inWindow } from "./browser.js";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
export const CONTRAST = { runOnly: ["color-contrast"] };
/** Colours are the same in every width. */
const NO_CONTRAST = { rules: { "color-contrast": { enabled: false } } };

/** `pages` as in the sidebar. */
export function bookChecks(checkAs, { browser, address, pages, figures }) {
  const check = (name, options, use) => checkAs(name, () => inWindow(browser, options, use));
  const withFigures = pages.filter((page) => figures[page] > 0);

  const prepare = () => localStorage.setItem("page-by-page.read", JSON.stringify(["setup.html"]));
  for (const page of pages) {
    const themes = page === withFigures.at(-1) ? ["navy", "rust", "coal", "ayu"] : ["navy"];
    check(`${page}, ${WIDE} wide`, { prepare }, (tab) => looks(tab, address + page, themes));
    check(`${page}, ${NARROW} wide`, { prepare, width: NARROW }, (tab) => looks(tab, address + page, []));
  }
  for (const page of withFigures) {
    check(`the steps of the figures of ${page}`, { width: NARROW, hasTouch: true }, (tab) => fingers(tab, address, page));
    check(`the figures of ${page} without script`, { javaScriptEnabled: false }, (tab) =>
      withoutScript(tab, address + page, figures[page]),
    );
  }
  check("bar, sidebar and foot say where the reader is", {}, (tab) => around(tab, address, pages));
  check("a command is copied without its prompt", {}, (tab) => commands(tab, address, pages));
  check("one of two pictures is shown", {}, (tab) => pictures(tab, address + pages[0]));
  for (const colorScheme of ["light", "dark"]) {
    check(`one of two pictures is shown without script, ${colorScheme}`, { javaScriptEnabled: false, colorScheme }, async (tab) => {
      await tab.goto(address + pages[0]);
      assert.deepEqual(await versions(tab), [`pbp-${colorScheme}`]);
    });
  }
  check("search", {}, (tab) => search(tab, address));
  check("pages read are remembered", {}, (tab) => progress(tab, address, pages));
  check("mouse and keyboard, in a browser that keeps nothing", { prepare: blockStorage }, (tab) =>
    forgetful(tab, address, withFigures[0]),
  );
  check("code too wide for a phone, and the sidebar, with the keyboard", { width: NARROW }, (tab) => keyboard(tab, address, pages));
  check("the print page", { prepare: () => (window.print = () => {}) }, (tab) => print(tab, address, pages, figures));
}

async function looks(tab, address, themes) {
  await tab.goto(address);
  const faults = [...(await edges(tab)), ...(await unreadable(tab, themes.length > 0 ? {} : NO_CONTRAST))];
  await sizes(tab);
  for (const theme of themes) {
    await choose(tab, theme);
    const found = await inaccessible(tab, CONTRAST);
    faults.push(...found.map((fault) => `in ${theme}: ${fault}`));
  }
  return faults;
}

/** Chooses a theme in the menu. */
export const choose = (tab, theme) => tab.locator(`#mdbook-theme-${theme}`).evaluate((button) => button.click());

/** What makes the page scroll sideways, and what axe finds. */
export async function unreadable(tab, options) {
  const wide = await tab.evaluate(() => {
    const boxes = [...document.querySelectorAll("html, body, #mdbook-content")];
    const wide = boxes.filter((box) => box.scrollWidth > box.clientWidth);
    return wide.map((box) => `<${box.nodeName.toLowerCase()}> scrolls sideways: ${box.scrollWidth} in ${box.clientWidth}`);
  });
  await tab.addScriptTag({ path: AXE });
  return [...wide, ...(await inaccessible(tab, options))];
}

/** That a reader sees which element has the focus. */
export async function showsFocus(element) {
  assert.notEqual(await element.evaluate((box) => getComputedStyle(box).outlineStyle), "none", "focus is invisible");
}

/** Presses buttons that go when they are pressed, or by themselves. */
export async function pressAll(buttons) {
  while ((await buttons.count()) > 0) {
    await buttons.first().click({ timeout: 2_000 }).catch(() => {});
  }
}

/** What does not begin and end where the text of the page does. */
async function edges(tab) {
  return tab.evaluate(() => {
    const main = document.querySelector("main").getBoundingClientRect();
    const boxes = [...document.querySelectorAll("main > :is(h1, h2, h3, p, ul, ol, pre, blockquote, details, figure, .table-wrapper)")];
    const out = boxes.filter((box) => {
      const { left, right } = box.getBoundingClientRect();
      return Math.abs(left - main.left) > 1 || Math.abs(right - main.right) > 1;
    });
    const faults = out.map((box) => `<${box.nodeName.toLowerCase()}> is not as wide as the page: ${box.textContent.trim().slice(0, 40)}`);
    return main.width > 720 ? [...faults, `lines are ${main.width} wide`] : faults;
  });
}

/** Serious and critical violations that axe finds. `options`: which rules it tries; without any, all. */
export async function inaccessible(tab, options) {
  return tab.evaluate(async (options) => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"], ...options });
    const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    return grave.map(({ id, help, nodes }) => {
      const shown = nodes.slice(0, 3).map((node) => `${node.target.join(" ")}: ${node.any[0]?.message ?? ""}`);
      return `axe ${id} (${help}), ${nodes.length} times: ${shown.join("; ")}`;
    });
  }, options);
}

/** The figures of a page that have steps. */
const STEPPED = "figure[data-figure].pbp-stepped";

/** What a figure shows now. */
async function shown(figure) {
  return figure.evaluate((element) => {
    const frames = [...element.querySelectorAll(".pbp-frame")];
    const isSeen = (part) => part.checkVisibility({ visibilityProperty: true });
    const seen = (selector) => frames.flatMap((frame, at) => [...frame.querySelectorAll(selector)].filter(isSeen).map(() => at));
    return {
      pictures: seen("svg"),
      sentences: seen("p"),
      aloud: element.querySelector("[aria-live]").textContent,
      value: element.querySelector("input").getAttribute("aria-valuetext"),
    };
  });
}

async function parts(figure) {
  const sentences = await figure.locator(".pbp-frame > p").allTextContents();
  const last = sentences.length - 1;
  return {
    last,
    opens: Number(await figure.getAttribute("data-opens")),
    range: figure.locator("input[type=range]"),
    previous: figure.getByRole("button", { name: "Previous step" }),
    next: figure.getByRole("button", { name: "Next step" }),
    at: async (step, isFirst = false) => {
      const place = `${step + 1} of ${last + 1}`;
      await figure.locator(`input[aria-valuetext="${place}"]`).waitFor();
      assert.ok(sentences[step].startsWith(`${place} `), sentences[step]);
      const aloud = isFirst ? "" : sentences[step];
      assert.deepEqual(await shown(figure), { pictures: [step], sentences: [step], aloud, value: place });
    },
  };
}

export async function steps(tab, address, page) {
  await tab.goto(address + page);
  for (const figure of await tab.locator(STEPPED).all()) {
    const { last, opens, range, previous, next, at } = await parts(figure);
    await at(opens, true);
    await next.click();
    await at(opens + 1);
    await previous.click();
    await at(opens);
    const box = await range.boundingBox();
    await tab.mouse.click(box.x + box.width - 3, box.y + box.height / 2);
    await at(last);
    const picture = await figure.locator(".pbp-frame.now > svg:visible").boundingBox();
    assert.ok(picture.y > box.y + box.height, "the controls are below the picture");

    for (const control of [range, next, previous]) {
      await control.focus();
      for (const [key, step] of [["End", last], ["ArrowRight", last], ["ArrowLeft", last - 1], ["Home", 0], ["ArrowLeft", 0], ["ArrowRight", 1]]) {
        await tab.keyboard.press(key);
        await at(step);
      }
      await showsFocus(control);
    }
    await tab.keyboard.press("Tab");
    await previous.press("Enter");
    await at(0);
    await previous.click({ force: true });
    await at(0);
    assert.equal(tab.url(), address + page, "arrow keys in a stepper turn the page");
  }
}

/** Pictures are as large as they are drawn, or smaller where there is no room; words are as large as in the book's small print. */
async function sizes(tab) {
  const highest = tab.viewportSize().width === NARROW ? 900 : 540;
  for (const picture of await tab.locator("figure[data-figure] .pbp-frame > svg:visible").all()) {
    const { width, height } = await picture.boundingBox();
    const drawn = Number(await picture.getAttribute("width"));
    assert.ok(width <= drawn + 1, `a picture is ${width} wide, drawn for ${drawn}`);
    assert.ok(height <= highest + 2, `a picture is ${height} high`);
    const words = await picture.locator("text").first().evaluate((text) => text.getBoundingClientRect().height);
    assert.ok(words >= 13, `the words of a figure are ${words} high`);
  }
}

async function fingers(tab, address, page) {
  await tab.goto(address + page);
  for (const figure of await tab.locator(STEPPED).all()) {
    const { last, opens, range, previous, next, at } = await parts(figure);
    for (const control of [range, previous, next]) {
      const { x, width, height } = await control.boundingBox();
      assert.ok(width >= 44 && height >= 44, `a control is ${width} by ${height}`);
      assert.ok(x >= 0 && x + width <= NARROW, "a control is outside the window");
    }
    const before = (await figure.boundingBox()).height;
    for (let step = opens + 1; step <= last; step += 1) {
      await next.tap();
      await at(step);
      const jump = Math.abs((await figure.boundingBox()).height - before);
      assert.ok(jump <= 1, `the figure changes its height by ${jump}`);
    }
  }
  await sizes(tab);
}

/** Two or three frames below each other, each with its sentence; of a figure without steps the picture. */
async function withoutScript(tab, url, count) {
  await tab.goto(url);
  const found = await tab.locator("figure[data-figure]").all();
  assert.equal(found.length, count);
  for (const figure of found) {
    await kept(figure);
    assert.equal(await figure.locator("button, input").count(), 0);
  }
}

async function kept(figure) {
  const frames = await figure.locator(".pbp-frame").count();
  const pictures = await figure.locator(".pbp-frame > svg:visible").all();
  assert.equal(pictures.length, Math.min(frames, 3));
  assert.equal(await figure.locator(".pbp-frame > p:visible").count(), frames > 1 ? pictures.length : 0);
  let end = 0;
  for (const picture of pictures) {
    const { y, height } = await picture.boundingBox();
    assert.ok(height > 60 && y >= end, `a picture is ${height} high, at ${y}`);
    end = y + height;
  }
}

async function keyboard(tab, address, pages) {
  const code = tab.locator("main pre > code");
  let page;
  let at = -1;
  for (page of pages) {
    await tab.goto(address + page);
    at = await code.evaluateAll((found) => found.findIndex((box) => box.scrollWidth > box.clientWidth));
    if (at >= 0) break;
  }
  assert.ok(at >= 0, "no page has code too wide for a phone");
  const wide = code.nth(at);
  await wide.focus();
  await tab.keyboard.press("ArrowRight");
  await tab.waitForFunction((box) => box.scrollLeft > 0, await wide.elementHandle());
  assert.equal(tab.url(), address + page, "the arrow turns the page");
  const toggle = tab.getByRole("button", { name: "Toggle Table of Contents" });
  const isOpen = () => tab.locator("html.sidebar-visible").count();
  for (const [key, expected] of [["Enter", 1], [" ", 0]]) {
    await toggle.press(key);
    assert.equal(await isOpen(), expected);
  }
}

async function around(tab, address, pages) {
  const entry = (page) => tab.locator(`#mdbook-sidebar .chapter-link-wrapper > a[href="${page}"]`);
  const bar = tab.locator(".menu-title");
  const at = pages.findIndex((page) => page.startsWith("ch"));
  await tab.goto(address + pages[at]);
  assert.equal(await bar.textContent(), await tab.locator("main h1").textContent());
  assert.match(await entry(pages[at]).getAttribute("class"), /active/);
  for (const [way, page] of [["Previous", pages[at - 1]], ["Next", pages[at + 1]]]) {
    await tab.goto(address + pages[at]);
    const title = await entry(page).evaluate((link) => link.firstChild.textContent);
    await tab.getByRole("link", { name: `${way} ${title}`, exact: true }).click();
    await tab.waitForURL(address + page);
    assert.equal(await bar.textContent(), await tab.locator("main h1").textContent());
  }
  await tab.setViewportSize({ width: NARROW, height: 740 });
  await tab.goto(address + pages[at]);
  assert.ok(await tab.locator(".mobile-nav-chapters.next small").isVisible(), "no way on, on a phone");
}

async function commands(tab, address, pages) {
  const page = pages.find((name) => name.startsWith("ch"));
  await tab.goto(address + page);
  const code = tab.locator("main pre > code.language-console").first();
  assert.equal(await code.locator("[class^=hljs]").count(), 0, "a word of a command is coloured");
  assert.match(await code.locator(".pbp-prompt").first().evaluate((prompt) => getComputedStyle(prompt, "::before").content), /\$/);
  const copied = await code.evaluate((all) => {
    getSelection().selectAllChildren(all);
    return String(getSelection());
  });
  assert.match(copied, /^cargo /);
}

/** The picture of the first page has two versions, one for light themes and one for dark ones. */
async function pictures(tab, address) {
  await tab.goto(address);
  for (const theme of ["light", "rust", "coal", "navy", "ayu"]) {
    await choose(tab, theme);
    assert.deepEqual(await versions(tab), [["light", "rust"].includes(theme) ? "pbp-light" : "pbp-dark"], theme);
    await tab.emulateMedia({ media: "print" });
    assert.deepEqual(await versions(tab), ["pbp-light"], `${theme}, printed`);
    await tab.emulateMedia({ media: "screen" });
  }
}

const versions = (tab) =>
  tab.locator("main img:is(.pbp-light, .pbp-dark):visible").evaluateAll((found) => found.map((picture) => picture.className));

async function search(tab, address) {
  await tab.goto(`${address}glossary.html`);
  const terms = await tab.locator("main td:first-child").allTextContents();
  assert.ok(terms.length > 20, `${terms.length} terms in the glossary`);
  const wanted = new Set(["page table", "copy-on-write", ...terms.map((term) => term.trim())]);
  await tab.keyboard.press("/");
  const field = tab.locator("#mdbook-searchbar");
  await field.waitFor();
  const missing = [];
  const results = tab.locator("#mdbook-searchresults-header");
  for (const term of wanted) {
    await field.fill(term);
    // mdBook listens to keys, not to the field.
    await field.press("Shift");
    await results.filter({ hasText: `'${term}'` }).waitFor();
    if ((await results.textContent()).startsWith("No ")) {
      missing.push(`not found: ${term}`);
    }
  }
  return missing;
}

async function progress(tab, address, pages) {
  const [first, second] = pages;
  const tick = (page) => tab.locator(`#mdbook-sidebar a[href$="${page}"] .pbp-read`);
  const toEnd = () => tab.locator("main > :last-child").evaluate((end) => end.scrollIntoView());
  await tab.goto(address + first);
  await toEnd();
  await tick(first).waitFor();
  assert.match(await tick(first).textContent(), /✓.*read/);
  await tab.goto(address + second);
  assert.equal(await tick(first).count(), 1, "the tick is gone on the next page");
  await toEnd();
  await tick(second).waitFor();
  assert.match(await tab.locator(".pbp-progress").textContent(), new RegExp(`2 of ${pages.length} pages`));
  await tab.getByRole("button", { name: "Forget which pages" }).click();
  assert.equal(await tab.locator(".pbp-read, .pbp-progress").count(), 0);
  await tab.goto(address + pages[2]);
  assert.equal(await tick(second).count(), 0, "not forgotten");
}

function blockStorage() {
  Object.defineProperty(window, "localStorage", {
    get() {
      throw new DOMException("blocked", "SecurityError");
    },
  });
}

async function forgetful(tab, address, page) {
  await steps(tab, address, page);
  await tab.locator("main > :last-child").evaluate((end) => end.scrollIntoView());
  await tab.waitForTimeout(200);
  assert.equal(await tab.locator(".pbp-read, .pbp-progress").count(), 0);
}

async function print(tab, address, pages, figures) {
  await tab.goto(`${address}print.html`);
  assert.equal(await tab.locator("main h1").count(), pages.length, "a page is missing");
  const expected = Object.values(figures).reduce((sum, count) => sum + count, 0);
  assert.equal(await tab.locator("main figure[data-figure]").count(), expected, "a figure is missing");
  const ids = await tab.locator("[id]").evaluateAll((elements) => elements.map((element) => element.id));
  assert.deepEqual(ids.filter((id, at) => ids.indexOf(id) !== at), [], "two elements have one id");

  // Stepped on the screen, the kept frames on paper.
  await tab.getByRole("button", { name: "Next step" }).evaluateAll((buttons) => buttons.forEach((button) => button.click()));
  await tab.emulateMedia({ media: "print" });
  assert.equal(await tab.locator("main .pbp-stepper:visible").count(), 0);
  for (const figure of await tab.locator("main figure[data-figure]").all()) {
    await kept(figure);
  }
}

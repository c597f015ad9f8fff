// The places where the engine runs in a page of the book: its output equals the program's, each control has the effect
// that the page states, and where the engine can't run, the page says why.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";

import { NARROW, WIDE, inWindow } from "./browser.js";
import { CONTRAST, choose, inaccessible, pressAll, showsFocus, unreadable } from "./checks.js";

const HOME = "index.html";
/** In the order of the sidebar. */
const PAGES = ["home.html", "ch04_page_pool.html", "ch05_page_table.html", "ch06_paged.html", "ch07_rewind.html", "ch08_speculative.html", "ch10_fork.html", "ch11_prefix_cache.html", "ch12_scheduler.html", "live.html"];

/** What the server answers for some files, and what the page says. */
const BROKEN = [
  ["a broken module", "**/engine/engine.wasm", { body: "no module" }, "The engine can't be loaded"],
  ["a broken model", "**/model.safetensors", { body: "no" }, /a safetensors file has at least 8 bytes, this one has 2.* Press Run to try again/],
  ["no engine beside the pages", "**/engine/**", { status: 404 }, "this copy of the book has no engine beside it"],
];

/** A check that runs to the end would take minutes at a reader's pace. */
const HURRIED = { isHurried: true };

/** `pages` have a place each, `published` is the folder of the book as it is published. */
export function placeChecks(checkAs, { browser, address, pages, published, program }) {
  const check = (name, page, use, { isHurried, ...options } = {}) =>
    checkAs(`the engine in a page: ${name}`, () =>
      inWindow(browser, options, async (tab, faults) => {
        await tab.goto(new URL(page, address).href);
        if (isHurried) {
          await move(tab, "Steps a second", "full speed");
        }
        await use(tab, faults);
      }),
    );
  for (const width of [WIDE, NARROW]) {
    check(`${width} wide, light and dark, and cancel frees pages`, HOME, looks, { width });
  }
  check("nothing is fetched before Run, and its stories are the program's", HOME, (tab) => stories(tab, program), HURRIED);
  check("with the keyboard alone, and the page answers while it runs", HOME, keyboard);
  // What the mistakes do is seen without a browser: crates/wasm/stories.mjs.
  for (const page of [HOME, ...PAGES].filter((page) => /index|ch(04|05|06|07|10|11|12)/.test(page))) {
    check(`a mistake, as it is recorded, and none without it: ${page}`, page, mistakes);
  }
  for (const window of [{ width: 1280, viewport: { width: 1280, height: 800 } }, { width: 390, viewport: { width: 390, height: 844 } }]) {
    check(`${window.width} wide, Run is in sight, and two keys away`, HOME, first, window);
  }
  check("page sizes", "ch06_paged.html", pageSizes);
  check("tokens taken back", "ch07_rewind.html", rewinds);
  check("drafts", "ch08_speculative.html", drafts, HURRIED);
  check("forks", "ch10_fork.html", forks, HURRIED);
  check("a prompt asked twice, and a different one", "ch11_prefix_cache.html", prefixes, HURRIED);
  check("pool and budget", "ch12_scheduler.html", scheduler, HURRIED);
  check("event by event", "ch12_scheduler.html", events, HURRIED);
  check("the first two steps, and too few pages", "live.html", interlude);
  for (const [name, files, answer, message] of BROKEN) {
    check(name, HOME, (tab, faults) => broken(tab, faults, files, answer, message));
  }
  check("stopped and started while it loads", HOME, impatient);
  check("opened as a file", pathToFileURL(join(published, HOME)).href, asFile);
  checkAs("the engine in a page: each place has a check", () => assert.deepEqual(pages, PAGES));
}

/** Home has two: the stories that can go wrong are in the first. */
const place = (tab) => tab.locator(".pbp-live").last();
const firstPlace = (tab) => tab.locator(".pbp-live").first();
const press = (tab, name) => place(tab).getByRole("button", { name, exact: true }).click();

// A place draws a view together with its button and its line. So once one of these has been seen, all of them can be
// read. A button or slider changes the place at once, so the state before it is never taken for the one after.

/** Waits until all is generated. */
const ended = (tab) => place(tab).getByRole("button", { name: "Run again" }).waitFor();

const says = (tab, what) => place(tab).locator("p[class]").filter({ hasText: what }).waitFor();

/** Moves a slider to this value. */
async function move(tab, label, value, where = place(tab)) {
  const slider = where.getByRole("slider", { name: label });
  const values = Number(await slider.getAttribute("max"));
  for (let at = 0; at <= values; at++) {
    await slider.fill(String(at));
    if ((await slider.getAttribute("aria-valuetext")) === String(value)) {
      return;
    }
  }
  assert.fail(`${label} can't be ${value}`);
}

/** Runs to the end, and returns the line about it. */
async function summary(tab) {
  await ended(tab);
  return place(tab).locator(".pbp-live-summary").textContent();
}

/** Takes steps, until a sequence's card says this. */
async function step(tab, times, what) {
  for (let at = 0; at < times; at++) {
    await press(tab, "One step");
    await place(tab).getByRole("button", { name: "Continue" }).waitFor();
  }
  await cards(tab, what).first().waitFor();
}

const cards = (tab, what) => place(tab).locator(".what", { hasText: what });

async function looks(tab, faults) {
  await step(tab, 12, "12 of 240 new tokens");
  assert.equal(await place(tab).locator("img:visible").count(), 0, "the picture is still there");
  faults.push(...(await unreadable(tab)));
  await pressAll(place(tab).getByRole("button", { name: /^Cancel sequence/ }));
  await ended(tab);
  assert.equal(await place(tab).locator(".grid :is(.own, .shared)").count(), 0);
  await says(tab, /^All fitted into at most \d+ of 100 pages\./);
  faults.push(...(await unreadable(tab)));
  await choose(tab, "navy");
  faults.push(...(await inaccessible(tab)).map((fault) => `in navy: ${fault}`));
}

async function stories(tab, program) {
  const asked = await tab.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => name));
  assert.deepEqual(asked.filter((name) => name.includes("/engine/")), []);
  await hasPicture(tab);
  await press(tab, "Run");
  await ended(tab);
  const ours = await place(tab).locator(".sequences .story").allTextContents();
  const prompt = await tab.locator(".story .prompt").first().textContent();
  const options = ["generate", prompt, "--samples", "8", "--seed", "65", "--max-new-tokens", "240", "--json"];
  const { stdout } = await promisify(execFile)(program, options, { maxBuffer: 1 << 24 });
  const theirs = JSON.parse(stdout).outputs.map(({ text }) => prompt + text);
  assert.equal(theirs.length, 8);
  assert.deepEqual(ours.sort(), theirs.sort());
}

async function keyboard(tab) {
  const button = place(tab).getByRole("button", { name: "Run" }).first();
  await button.focus();
  await showsFocus(button);
  await tab.keyboard.press("Enter");
  await place(tab).locator(".grid .own").first().waitFor();
  const grid = tab.getByRole("listbox", { name: "Pages of the pool" });
  await grid.focus();
  const here = tab.url();
  for (const key of ["Home", "ArrowRight", "ArrowRight", "ArrowLeft"]) {
    await tab.keyboard.press(key);
  }
  assert.match(await grid.getAttribute("aria-activedescendant"), /-page-1$/);
  await says(tab, /^Page 1: /).catch(() => assert.fail("no words about page 1"));
  assert.equal(tab.url(), here, "an arrow key turned the page");
  // A script that waits for the next frame, again and again, never waits long: the engine has a thread of its own.
  const frames = await tab.evaluate(async () => {
    const end = performance.now() + 2_000;
    let count = 0;
    while (performance.now() < end) {
      await new Promise((done) => { requestAnimationFrame(done); });
      count += 1;
    }
    return count;
  });
  assert.ok(frames >= 10, `${frames} frames in two seconds`);
}

/** Switches each mistake of the page's first place on, the first one with the keyboard, and the last one off again. */
async function mistakes(tab, faults) {
  const inOne = (text) => text.replaceAll(/\s+/g, " ").trim();
  const recorded = inOne(await readFile(new URL("../../tests/snapshots/broken_stories.snap", import.meta.url), "utf8"));
  const all = firstPlace(tab);
  const hasLists = (await all.getAttribute("data-live")) === "wolf";
  if (!hasLists) {
    await move(tab, "Steps a second", "full speed", all);
  }
  const [line, end] = [all.locator(".pbp-live-summary[role=status]"), all.getByRole("button", { name: "Run again" })];
  const buttons = await all.locator(".break").all();
  for (const [at, button] of buttons.entries()) {
    await (at === 0 ? button.press("Enter") : button.click());
    await end.waitFor();
    const text = await line.textContent();
    const why = hasLists ? / read .* No error: / : / read .*, and went on\. No error: .* for each new token: [\d,]+ wrong reads in all\. /;
    assert.match(text, why);
    assert.match(text, / Without the mistake, .* goes on “.*”\.$/);
    const pressed = await all.locator(".break[aria-pressed=true]").allTextContents();
    assert.deepEqual(pressed, [await button.textContent()]);
    const stories = await all.locator(".story").allTextContents();
    stories.forEach((story) => assert.ok(recorded.includes(inOne(story)), `not recorded: ${story}`));
    const aloud = all.locator(".story mark").first().evaluate((mark) => getComputedStyle(mark, "::before").content);
    assert.match(await aloud, /wrong from here on/, "no word is marked");
  }
  if (tab.url().endsWith(HOME)) {
    const lists = await all.locator(".pbp-live-drafts li").allTextContents();
    assert.deepEqual(lists, [
      "Page 1, first slot: A writes wolf → B writes over it princess → A reads princess",
      "A’s list: page 0 ‹start› Once upon a time there was a page 1 wolf princesswhohadnoonetomarry,",
      "B’s list: page 2 ‹start› Once upon a time there was a page 1 too",
    ]);
    faults.push(...(await unreadable(tab, CONTRAST)));
    await choose(tab, "navy");
    faults.push(...(await inaccessible(tab, CONTRAST)).map((fault) => `in navy: ${fault}`));
  }
  await buttons.at(-1).click();
  await end.waitFor();
  assert.doesNotMatch((await line.textContent()) ?? "", /wrong/);
  assert.equal(await all.locator(":is(mark, .misread, [aria-pressed=true])").count(), 0);
}

/** What a reader sees and reaches first. */
async function first(tab) {
  const run = firstPlace(tab).getByRole("button", { name: "Run" }).first();
  const other = firstPlace(tab).getByRole("button", { name: "Break it: give one page to both" });
  for (const button of [run, other]) {
    const { y, height } = await button.boundingBox();
    assert.ok(y + height < tab.viewportSize().height, `a button is at ${y}`);
  }
  assert.equal(await firstPlace(tab).locator("blockquote:visible").count(), 2, "the recorded stories stand there");
  await tab.keyboard.press("Tab");
  await showsFocus(tab.getByRole("link", { name: "Skip to the page" }));
  await tab.keyboard.press("Enter");
  await tab.keyboard.press("Tab");
  assert.ok(await run.evaluate((button) => button === document.activeElement), "Run is not the first after the link");
}

async function pageSizes(tab) {
  await move(tab, "Page size", 64);
  await press(tab, "One step");
  await says(tab, "2 pages taken. 18 of their 128 slots are filled, 110 wasted.");
  await move(tab, "Page size", 1);
  await press(tab, "One step");
  await says(tab, "18 pages taken. 18 of their 18 slots are filled, 0 wasted.");
  assert.equal(await place(tab).locator(".grid .cell").count(), 256);
}

async function rewinds(tab) {
  for (const event of ["Step 1. A and B start", "Step 18. A takes tokens back, and gives back page 6"]) {
    await place(tab).getByRole("button", { name: "Next event" }).click();
    await place(tab).locator(".event", { hasText: event }).waitFor();
  }
}

async function drafts(tab) {
  await move(tab, "Draft tokens per step", 8);
  await press(tab, "Run");
  assert.equal(await summary(tab), "22 steps, with one pass of the target each, for 100 tokens. 78 of 171 draft tokens accepted.");
  assert.ok((await place(tab).locator(".pbp-live-drafts :is(ins, del)").count()) > 8);
  const story = await place(tab).locator(".story").textContent();
  await move(tab, "Draft tokens per step", 4);
  assert.match(await summary(tab), /^29 steps, .* 71 of 114 draft tokens accepted\.$/);
  assert.equal(await place(tab).locator(".story").first().textContent(), story);
  await press(tab, "Keep rejected tokens");
  assert.match(await summary(tab), /^49 steps, .* 51 of 194 draft tokens accepted\.$/);
  assert.equal(await place(tab).locator(".story").first().textContent(), story);
}

async function forks(tab) {
  await step(tab, 2, "2 of 47 new tokens");
  // The samples count their tokens as the first does, and a fork is no hit of a cache.
  assert.equal(await cards(tab, "of 47 new tokens").count(), 8);
  assert.equal(await cards(tab, "cached").count(), 0);
  await press(tab, "Continue");
  assert.match(await summary(tab), /at most 53 so far/);
  const outputs = await place(tab).locator(".story").allTextContents();
  await place(tab).getByLabel("Fork the first sample").uncheck();
  assert.match(await summary(tab), /at most 88 so far/);
  assert.deepEqual((await place(tab).locator(".story").allTextContents()).sort(), outputs.sort());
}

async function prefixes(tab) {
  await press(tab, "Run");
  assert.equal(await summary(tab), "0 of the prompt's 42 tokens cached.");
  await press(tab, "Run again");
  assert.equal(await summary(tab), "40 of the prompt's 42 tokens cached.");
  const prompt = place(tab).getByLabel("Prompt");
  await prompt.fill((await prompt.inputValue()).replace("Once", "Twice"));
  await press(tab, "Run again");
  assert.equal(await summary(tab), "0 of the prompt's 44 tokens cached.");
  await prompt.fill("king ".repeat(1_100));
  await press(tab, "Run again");
  await place(tab).locator(".pbp-live-says.bad").waitFor();
}

async function scheduler(tab) {
  const preemptions = async () => {
    await ended(tab);
    return place(tab).locator(".lost-says").textContent();
  };
  await press(tab, "Run");
  assert.match(await preemptions(), /^4, /);
  const outputs = await place(tab).locator(".story").allTextContents();
  await move(tab, "Pages", 128);
  assert.match(await preemptions(), /^0, /);
  assert.deepEqual((await place(tab).locator(".story").allTextContents()).sort(), outputs.sort());
  await move(tab, "Pages", 64);
  await move(tab, "Token budget", 8);
  await place(tab).locator(".budget-says", { hasText: " of 8 tokens scheduled" }).waitFor();
}

async function events(tab) {
  const button = place(tab).getByRole("button", { name: "Next event" });
  const line = place(tab).locator(".event");
  await button.click();
  await line.filter({ hasText: /^Step 1\. A to D start\. B and C free 10 full pages/ }).waitFor();
  await button.press("Enter");
  await line.filter({ hasText: "E to H start with 40 of 42 prompt tokens cached" }).waitFor();
  await button.press("Enter");
  await line.filter({ hasText: "Step 57. H is preempted: of its 12 pages, the prefix cache keeps 8 and D to G take 4." }).waitFor();
  const told = place(tab).locator(".sequences .told");
  assert.deepEqual(await told.locator(".badge").allTextContents(), ["H"]);
  const [bottom, height] = await told.evaluate((box) => [box.getBoundingClientRect().bottom, innerHeight]);
  assert.ok(bottom <= height, `H is out of sight: its card ends at ${bottom} of ${height}`);
  assert.equal(await place(tab).locator(".grid .told").count(), 12);
  assert.equal(await place(tab).locator(".lost-says").textContent(), "1, recomputed tokens are counted when it runs again");
  // What scrolls past below a resting pointer isn't pointed at.
  await place(tab).locator(".title").first().hover();
  await tab.mouse.wheel(0, 120);
  await tab.waitForTimeout(200);
  assert.equal(await place(tab).locator(".marked").count(), 0, "marked without a pointer's move");
  await told.hover();
  await place(tab).locator(".sequences .marked").waitFor();
}

async function interlude(tab) {
  await step(tab, 1, "prefill, 4 of 42 prompt tokens");
  assert.equal(await cards(tab, "waits, number 1 in the queue").count(), 1);
  await step(tab, 1, "32 of 42 prompt tokens cached");
  assert.equal(await cards(tab, "32 of 42 prompt tokens cached").count(), 1);
  assert.equal(await place(tab).locator(".grid .shared").count(), 2);
  await step(tab, 98, "100 of 300 new tokens");
  await place(tab).getByRole("button", { name: "Cancel sequence C" }).click();
  await says(tab, "Sequence C is cancelled. Its 9 pages: 1 free again, 8 kept by the prefix cache or other sequences.");
  assert.equal(await place(tab).locator(".grid .own", { hasText: "C" }).count(), 0);
  await move(tab, "Pages", 64);
  await press(tab, "Continue");
  await cards(tab, "was preempted and waits, number 1 in the queue").first().waitFor();
}

const hasPicture = async (tab) => assert.equal(await place(tab).locator("img:visible").count(), 1, "the picture is gone");

/** While these files are broken the picture stays and the page says why; once they are mended, the engine runs. */
async function broken(tab, faults, files, answer, message) {
  await tab.route(files, (route) => route.fulfill(answer));
  await press(tab, "Run");
  await says(tab, message);
  await hasPicture(tab);
  await tab.unroute(files);
  await press(tab, "Run");
  await place(tab).locator(".grid .own").first().waitFor();
  // The browser's messages about missing files aren't the page's faults.
  faults.splice(0, faults.length, ...faults.filter((fault) => !/404|Failed to load/.test(fault)));
}

/** However often it is stopped while it loads, one engine runs, and it can be paused. The focus stays where it is. */
async function impatient(tab) {
  await tab.evaluate(() => {
    const Real = Worker;
    globalThis.workers = 0;
    globalThis.Worker = class extends Real {
      constructor(...rest) {
        super(...rest);
        globalThis.workers += 1;
      }

      terminate() {
        super.terminate();
        globalThis.workers -= 1;
      }
    };
  });
  let goOn;
  const isPatient = new Promise((done) => { goOn = done; });
  await tab.route("**/about.json", (route) => isPatient.then(() => route.continue()));
  for (const name of ["Run", "Stop", "Run", "Stop", "Run"]) {
    await press(tab, name);
  }
  goOn();
  await place(tab).locator(".grid .own").first().waitFor();
  assert.equal(await tab.evaluate(() => globalThis.workers), 1);
  await press(tab, "Pause");
  const once = place(tab).getByRole("button", { name: "One step" });
  await once.focus();
  await tab.keyboard.press("Enter");
  await tab.keyboard.press("ArrowRight");
  assert.equal(await tab.evaluate(() => document.activeElement.textContent), "One step");
}

async function asFile(tab) {
  await says(tab, "opened as a file");
  await hasPicture(tab);
  assert.equal(await place(tab).getByRole("button").count(), 0);
}

/** The picture that a place has before it runs: the pages after some steps. */
export async function picture(browser, address, theme, path) {
  await inWindow(browser, { theme, width: 1280, deviceScaleFactor: 2 }, async (tab) => {
    await tab.goto(address + HOME);
    await step(tab, 60, "60 of 240 new tokens");
    await tab.evaluate(() => document.activeElement.blur());
    const legend = await place(tab).locator(".legend").boundingBox();
    const grid = await place(tab).locator(".grid").boundingBox();
    const bottom = (await place(tab).locator(".grid .cell").last().boundingBox()).y + 40;
    const scroll = await tab.evaluate(() => scrollY);
    const clip = { x: grid.x - 12, y: scroll + legend.y - 12, width: grid.width + 24, height: bottom - legend.y + 12 };
    await tab.screenshot({ path, clip, fullPage: true });
  });
}

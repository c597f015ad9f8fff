// The page that the server shows at `/`: the pages of its pool while sequences run. Each check has a server of its own.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

import { NARROW, WIDE, inWindow } from "./browser.js";
import { CONTRAST, inaccessible, pressAll, showsFocus, unreadable } from "./checks.js";

/** Long enough that the sequences still run when a check looks at them, at the page's own pace. */
const MOST = 900;

/** `program` serves. */
export function liveChecks(checkAs, { browser, program }) {
  const check = (name, ...rest) => checkAs(`the live page: ${name}`, () => checked(browser, program, ...rest));
  for (const width of [WIDE, NARROW]) {
    // What the test adds, to look for faults, is not a script of the page's.
    check(`${width} wide, light and dark`, [], { width, bypassCSP: true }, looks);
  }
  check("prompt and output are what the server sends, and stay text", [], {}, theOutput);
  check("sequences and pages mark each other", [], {}, marks);
  check("with the keyboard alone", [], {}, keyboard);
  check("slowed down, paused, step by step, until the page is closed", [], {}, paced);
  check("a page with two owners by mistake", [], {}, mistake);
  check("a refusal is shown in its words", ["--max-running", "4", "--queue", "0"], {}, refused);
  check("a lost connection is shown, and comes back", [], {}, lost);
  check("a key is asked for, and kept nowhere", ["--api-key", "sesame"], {}, withKey);
  check("as many viewers as places", ["--viewers", "1"], {}, full);
}

/** A server, on a port of its own or on this one. */
async function serve(program, more, port = 0) {
  const child = spawn(program, ["serve", "--port", String(port), ...more], { stdio: ["ignore", "pipe", "ignore"] });
  // Also where a check has taken too long, and its end is not awaited.
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  const ended = new Promise((done) => { child.once("exit", done); });
  const line = await Promise.race([
    new Promise((done) => { createInterface({ input: child.stdout }).once("line", done); }),
    ended.then((code) => { throw new Error(`the server ends with ${code}`); }),
  ]);
  const stop = () => {
    process.removeListener("exit", kill);
    kill();
    return ended;
  };
  return { address: `${line}/`, port: Number(new URL(line).port), stop };
}

/** Opens the page of a new server. */
async function checked(browser, program, more, options, use) {
  let server = await serve(program, more);
  const restart = async () => { server = await serve(program, more, server.port); };
  try {
    const faults = await inWindow(browser, options, async (tab, faults) => {
      await tab.goto(server.address);
      await use(tab, { server, restart, faults });
    });
    // What the browser says of refused requests is no fault of the page.
    return faults.filter((fault) => !/^(400|401|404|429)|console: Failed to load/.test(fault));
  } finally {
    await server.stop();
  }
}

const here = (tab) => tab.locator("#connection.here").waitFor();
const cards = (tab) => tab.locator(".sequences > li:not(.over)");
const running = (tab) => cards(tab).filter({ hasText: /page/ });
const cancels = (tab) => tab.locator(".sequences button:visible");
const says = (tab, what) => tab.locator("#says").filter({ hasText: what }).waitFor();
const count = (tab, pattern) =>
  tab.locator(".pages-say").textContent().then((text) => Number(text.match(pattern)[1].replaceAll(",", "")));

async function ask(tab, button, n, most = MOST) {
  await here(tab);
  await tab.locator("#most").fill(String(most));
  await tab.locator(button).click();
  await tab.waitForFunction((least) => document.querySelectorAll(".sequences > li").length >= least, n);
}

async function eight(tab) {
  await ask(tab, "#eight", 8);
  await tab.waitForFunction(() => document.querySelector(".grid .shared"));
  assert.equal(await tab.locator(".sequences .badge").count(), 8);
}

async function cancelAll(tab) {
  await pressAll(cancels(tab));
  await tab.locator(".pages-say").filter({ hasText: /^0 owned by sequences/ }).waitFor();
}

/** While sequences run and afterwards, in light and dark. */
async function looks(tab, { faults }) {
  const contrastIn = async (colorScheme) => {
    await tab.emulateMedia({ colorScheme });
    faults.push(...(await inaccessible(tab, CONTRAST)).map((fault) => `in ${colorScheme}: ${fault}`));
  };
  await eight(tab);
  faults.push(...(await unreadable(tab)));
  await contrastIn("dark");
  await cancelAll(tab);
  await contrastIn("dark");
  await tab.emulateMedia({ colorScheme: "light" });
  faults.push(...(await unreadable(tab)));
}

async function theOutput(tab) {
  const prompt = `<img src=x onerror="window.hit=1"><script>window.hit=2</script><b>&amp;</b> ' " \u202e`;
  await here(tab);
  await tab.locator("#prompt").fill(prompt);
  await tab.locator("#most").fill("60");
  const [answer] = await Promise.all([
    tab.waitForResponse((response) => response.url().endsWith("/v1/completions")),
    tab.locator("#generate").click(),
  ]);
  const { choices } = await answer.json();
  await tab.locator(".sequences .over").waitFor();
  assert.equal(await tab.locator(".story").textContent(), prompt + choices[0].text);
  assert.equal(await tab.locator(".sequences :is(img, script) , .sequences .prompt *, .sequences .story > span *").count(), 0);
  assert.equal(await tab.evaluate(() => window.hit), undefined);
  const cached = await count(tab, /, ([\d,]+) by the prefix cache/);
  assert.equal(cached + (await count(tab, /, ([\d,]+) free/)), 256);
  assert.equal(await tab.locator(".grid .cached").count(), cached);
}

async function marks(tab) {
  await eight(tab);
  const card = running(tab).nth(1);
  await card.hover();
  await tab.locator(".grid.marking").waitFor();
  const lit = await tab.locator(".grid .cell.marked").count();
  const name = await card.locator(".badge").textContent();
  assert.ok(lit > 1, `${lit} pages are marked`);
  const words = await tab.locator(".grid .cell.marked").first().getAttribute("aria-label");
  assert.match(words, new RegExp(`\\b${name}\\b`));
  await tab.locator("h1").hover();
  await tab.locator(".grid:not(.marking)").waitFor();
  // A shared page names all of its sequences, and lights them.
  await tab.locator(".grid .shared").first().hover();
  await tab.locator(".page-says").filter({ hasText: /shared by \d sequences/ }).waitFor();
  assert.ok((await tab.locator(".sequences > li.marked").count()) > 1);
  // And with the keyboard.
  await running(tab).first().locator(".story").focus();
  await tab.locator(".grid.marking").waitFor();
}

async function paced(tab, { server }) {
  const slowed = (page, what) => page.locator("#slowed").filter({ hasText: what }).waitFor();
  const press = (name) => tab.getByRole("button", { name, exact: true }).click();
  await eight(tab);
  await slowed(tab, "The server takes 15 steps a second, for all its clients");
  await press("Pause");
  await slowed(tab, "The server is paused, for all its clients, until you choose otherwise or close this page.");
  const before = parseInt(await tab.locator(".steps-say").textContent(), 10);
  await press("One step");
  await tab.locator(".steps-say").filter({ hasText: new RegExp(`^${before + 1}, `) }).waitFor();
  const other = await tab.context().newPage();
  await other.goto(server.address);
  await slowed(other, "or the page that did so is closed");
  await cancelAll(other);
  await tab.locator("#generate").click();
  await press("Next event");
  await tab.locator(".event").filter({ hasText: "starts with 32 of 42 prompt tokens cached" }).waitFor();
  await tab.getByRole("button", { name: "Continue" }).waitFor();
  await tab.close();
  await slowed(other, "The server steps at full speed.");
  await other.locator(".sequences > li:not(.over)").waitFor({ state: "detached" });
}

/** Two sequences have page 3, whose reference count is 1. */
async function mistake(tab) {
  await here(tab);
  await tab.evaluate(() => {
    const sequence = (id) => ({ id, status: "running", prompt: "", text: "", prompt_tokens: 4, new_tokens: 4, max_new_tokens: 9, held_tokens: 8, pages: [3], cached_tokens: 0, cached_after_preemption: 0, preemptions: 0 });
    const totals = { cached_tokens: 0, prompt_tokens: 8, new_tokens: 8, preemptions: 0, recomputed_tokens: 0 };
    const rest = { version: 1, steps: 4, page_size: 16, finished: [], scheduled_tokens: 2, token_budget: 64, max_running: 8, totals };
    newPool("").take([{ ...rest, owners: [0, 0, 0, 1], sequences: [sequence(0), sequence(3)] }]);
  });
  assert.equal(await tab.locator(".grid .mistake").textContent(), "!");
  const words = "A mistake. Page 3: A and D own it, but its reference count is 1.";
  assert.equal(await tab.locator(".mistakes").textContent(), words);
}

async function keyboard(tab) {
  await here(tab);
  await tab.locator("#most").fill(String(MOST));
  await tab.locator("#prompt").focus();
  await tab.keyboard.press("Tab");
  await tab.keyboard.press("Tab");
  assert.equal(await tab.evaluate(() => document.activeElement.id), "eight");
  await showsFocus(tab.locator("#eight"));
  await tab.keyboard.press("Enter");
  await tab.locator(".grid .shared").first().waitFor();
  const grid = tab.getByRole("listbox", { name: "Pages of the pool" });
  await grid.focus();
  const at = () => grid.getAttribute("aria-activedescendant");
  const seen = [];
  for (const key of ["Home", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "End"]) {
    await tab.keyboard.press(key);
    seen.push(Number((await at()).match(/\d+$/)[0]));
  }
  const [home, right, down, left, up, end] = seen;
  assert.deepEqual([home, right, left, up, end], [0, 1, down - 1, 0, 255]);
  assert.ok(down > 5);
  await tab.locator(".page-says").filter({ hasText: "Page 255: " }).waitFor();
  // A sequence is cancelled, and the focus is not lost with its button.
  await cancels(tab).first().focus();
  await tab.keyboard.press("Enter");
  await says(tab, "is cancelled");
  await tab.waitForFunction(() => document.activeElement.closest(".sequences"));
  await cancelAll(tab);
}

async function refused(tab) {
  await here(tab);
  await tab.locator("#eight").click();
  await says(tab, "8 sequences are more than the 4 places of this server");
  await tab.locator("#prompt").fill("");
  await tab.locator("#generate").click();
  await says(tab, "the prompt is missing or empty");
}

async function lost(tab, { server, restart }) {
  await ask(tab, "#eight", 8);
  await server.stop();
  await tab.locator("#connection.lost", { hasText: "Connection lost" }).waitFor();
  await restart();
  await here(tab);
  // A new server, without sequences.
  await tab.waitForFunction(() => document.querySelectorAll(".sequences > li").length === 0);
  await ask(tab, "#generate", 1, 5);
}

async function withKey(tab, { server }) {
  const form = tab.locator("#key");
  await form.waitFor();
  for (const [given, then] of [["wrong", "That is not the key"], ["sesame", "Connected"]]) {
    await tab.getByLabel("This server asks for its API key").fill(given);
    await tab.keyboard.press("Enter");
    await tab.locator("#connection", { hasText: then }).waitFor();
  }
  assert.ok(!(await form.isVisible()));
  await ask(tab, "#eight", 8);
  await cancelAll(tab);
  const kept = await tab.evaluate(() => [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie, location.href]);
  assert.ok(!kept.join().includes("sesame"), kept.join());
  assert.equal(await tab.locator("#key-value").inputValue(), "");
  await tab.goto(server.address);
  await form.waitFor();
}

async function full(tab, { server }) {
  await here(tab);
  const other = await tab.context().newPage();
  await other.goto(server.address);
  await other.locator("#connection.lost", { hasText: "1 of 1 places to watch" }).waitFor();
  await tab.goto("about:blank");
  await here(other);
}

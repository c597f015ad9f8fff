// The module's stories under Node, compared with those of the program: the same bytes, in one pool or in a pool that is too small, forked
// or not, with drafts or without; and with each mistake that a page can switch on, the stories of the record.
//
//   node crates/wasm/stories.mjs MODULE PROGRAM

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { runInThisContext } from "node:vm";

const [, , module, program] = process.argv;
const root = (file) => fileURLToPath(new URL(`../../${file}`, import.meta.url));
const engine = await readFile(root("crates/wasm/engine.js"), "utf8");
const { openEngine, files } = runInThisContext(`(() => {${engine}; return { openEngine, files: [...MODEL_FILES, ...DRAFT_FILES] }; })()`);
const ask = await openEngine(await readFile(module), await Promise.all(files.map((file) => readFile(root(`assets/${file}`)))));

const PROMPT = "Once upon a time there was a king";
const POOL = { pages: 256, page_size: 16, token_budget: 256, max_running: 8, prefix_cache: true };
const EIGHT = { prompt: PROMPT, max_new_tokens: 120, seed: 1, samples: 8 };

/** The outputs that these sequences get, in order, and the counters at the end. Without `starts`, those of the mistake that is on. */
function outputs(settings, ...starts) {
  ask({ open: settings });
  const ended = [];
  let [view] = starts.length > 0 ? starts.map((start) => ask({ start })) : [ask("start_scenario")];
  while (view.sequences.length > 0) {
    view = ask("step");
    ended.push(...view.finished);
  }
  return { texts: ended.sort((a, b) => a.id - b.id).map(({ text }) => text), ...view };
}

/** What the program prints. */
function expected({ prompt, max_new_tokens }, ...options) {
  const json = execFileSync(program, ["generate", prompt, "--max-new-tokens", `${max_new_tokens}`, "--json", ...options], { cwd: root("") });
  const { outputs: all, text } = JSON.parse(json);
  return all ? all.map((output) => output.text) : [text];
}

const eight = expected(EIGHT, "--samples", "8", "--seed", "1");
assert.equal(new Set(eight).size, 8);
let preemptions = 0;
for (const [settings, start] of [
  [POOL, EIGHT],
  [{ ...POOL, pages: 24 }, EIGHT],
  [{ ...POOL, page_size: 5, token_budget: 7, prefix_cache: false }, EIGHT],
  [POOL, { ...EIGHT, fork: true }],
]) {
  const { texts, totals } = outputs(settings, start);
  assert.deepEqual(texts, eight, JSON.stringify([settings, start]));
  preemptions += totals.preemptions;
}
assert.ok(preemptions > 0, "no pool was too small");

const greedy = { ...EIGHT, samples: 1, greedy: true };
const drafted = outputs({ ...POOL, drafts: 4 }, greedy);
assert.deepEqual(drafted.texts, expected(greedy, "--temperature", "0"));
assert.ok(drafted.counters.accepted > 20 && drafted.counters.accepted < drafted.counters.drafted, JSON.stringify(drafted.counters));
assert.equal(outputs({ ...POOL, drafts: 4 }, { ...greedy, max_new_tokens: 0 }).finished[0].reason, "length");
assert.throws(() => outputs({ ...POOL, pages: 3 }, EIGHT), /page/);
for (const file of ["controls", "live_views"]) {
  runInThisContext(await readFile(root(`book/${file}.js`), "utf8"));
}
// The wolf and the princess of the first page, as they are before a button breaks them.
const { wolf, rewind, ...others } = globalThis.LIVE_VIEWS;
assert.deepEqual(outputs(wolf.settings, ...wolf.starts).texts, wolf.starts.flatMap((start) => expected(start, "--seed", `${start.seed}`)));
const inOne = (text) => text.replaceAll(/\s+/g, " ").trim();
const recorded = inOne(await readFile(root("tests/snapshots/broken_stories.snap"), "utf8"));
outputs(rewind.settings, ...rewind.starts).texts.forEach((text) => assert.ok(recorded.includes(inOne(text)), `not recorded: ${text}`));
// The mistakes of all buttons, with the settings of their place.
const places = [wolf, rewind, ...Object.values(others)];
const breaks = places.flatMap(({ settings, breaks = {} }) => Object.keys(breaks).map((mistake) => ({ ...settings, mistake })));
for (const settings of breaks) {
  if (settings.drafts) {
    // The same story, and a higher bill.
    const { texts, counters } = outputs({ ...POOL, ...settings, pages: 32 }, greedy);
    assert.deepEqual(texts, drafted.texts);
    assert.ok(counters.accepted < drafted.counters.accepted && counters.drafted > drafted.counters.drafted, JSON.stringify(counters));
    continue;
  }
  const { texts, wrong_reads } = outputs(settings);
  assert.ok(texts.length > 0 && wrong_reads.n > 0, `${settings.mistake}: ${texts.length} stories, ${wrong_reads.n} wrong reads`);
  texts.forEach((text) => assert.ok(recorded.includes(inOne(text)), `${settings.mistake}, not recorded: ${text}`));
}
console.log(`with each of ${breaks.length} mistakes, the module's stories are the record's`);
console.log("the module's stories are the program's: 4 runs of eight, one with drafts, and one of two");

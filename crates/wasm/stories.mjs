// The module's stories under Node, compared with those of the program: the same bytes, in one pool or in a pool that is too small, forked
// or not, with drafts or without.
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
const POOL = { pages: 256, page_size: 16, budget: 256, running: 8, prefix_cache: true };
const EIGHT = { prompt: PROMPT, max_new_tokens: 120, seed: 1, samples: 8 };

/** The outputs that these sequences get, in order, and the counters at the end. */
function outputs(settings, start) {
  ask({ open: settings });
  const ended = [];
  let view = ask({ start });
  while (view.sequences.length > 0) {
    view = ask("step");
    ended.push(...view.ended);
  }
  return { texts: ended.sort((a, b) => a.id - b.id).map(({ text }) => text), ...view };
}

/** What the program prints. */
function expected(...options) {
  const json = execFileSync(program, ["generate", PROMPT, "--max-new-tokens", "120", "--json", ...options], { cwd: root("") });
  const { outputs: all, text } = JSON.parse(json);
  return all ? all.map((output) => output.text) : [text];
}

const eight = expected("--samples", "8", "--seed", "1");
assert.equal(new Set(eight).size, 8);
let preemptions = 0;
for (const [settings, start] of [
  [POOL, EIGHT],
  [{ ...POOL, pages: 24 }, EIGHT],
  [{ ...POOL, page_size: 5, budget: 7, prefix_cache: false }, EIGHT],
  [POOL, { ...EIGHT, fork: true }],
]) {
  const { texts, counts } = outputs(settings, start);
  assert.deepEqual(texts, eight, JSON.stringify([settings, start]));
  preemptions += counts.preemptions;
}
assert.ok(preemptions > 0, "no pool was too small");

const greedy = { ...EIGHT, samples: 1, greedy: true };
const drafted = outputs({ ...POOL, drafts: 4 }, greedy);
assert.deepEqual(drafted.texts, expected("--temperature", "0"));
assert.ok(drafted.counters.accepted > 20 && drafted.counters.accepted < drafted.counters.drafted, JSON.stringify(drafted.counters));
assert.throws(() => outputs({ ...POOL, pages: 3 }, EIGHT), /page/);
console.log("the module's stories are the program's: 4 runs of eight, and one with drafts");

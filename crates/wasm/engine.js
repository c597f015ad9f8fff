// The engine as a function: used by the worker, and by the tests under Node.
"use strict";

/** In the order in which the module keeps them: see `Files` in crates/wasm/src/session.rs. */
const MODEL_FILES = [
  "storyteller/config.json",
  "storyteller/generation_config.json",
  "storyteller/tokenizer.json",
  "storyteller/model.safetensors",
];
const DRAFT_FILES = ["storyteller-draft/config.json", "storyteller-draft/model.safetensors"];

/**
 * Opens a module with the bytes of these files. Returns a function that takes a request and returns the engine's answer, or throws: see `Request` in crates/wasm/src/session.rs.
 */
async function openEngine(module, files) {
  let exports;
  const bytes = (at, n) => new Uint8Array(exports.memory.buffer, at, n);
  const text = (at, n) => new TextDecoder().decode(bytes(at, n));
  let panic;
  const page = { panicked: (at, n) => { panic = text(at, n); } };
  ({ instance: { exports } } = await WebAssembly.instantiate(module, { page }));
  const put = (input) => bytes(exports.alloc_input(input.length), input.length).set(input);
  exports.begin();
  files.forEach((file, at) => {
    put(file);
    exports.add_file(at);
  });
  return (request) => {
    put(new TextEncoder().encode(JSON.stringify(request)));
    let n;
    try {
      n = exports.call();
    } catch (trap) {
      throw new Error(panic ?? trap.message);
    }
    const answer = JSON.parse(text(exports.answer(), n));
    if (answer.error !== undefined) {
      throw new Refusal(answer.error);
    }
    return answer;
  };
}

/** A request that the engine refuses. It can go on after this error, but after no other. */
class Refusal extends Error {}

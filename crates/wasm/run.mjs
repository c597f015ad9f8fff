// Runs a test binary that is compiled for wasm32-unknown-unknown: `cargo test` calls it with the module. Such a module can print nothing,
// and a test that fails is a trap. The same tests say more when they run on this computer.

import { readFile } from "node:fs/promises";

const { instance } = await WebAssembly.instantiate(await readFile(process.argv[2]));
process.exitCode = instance.exports.main(0, 0);

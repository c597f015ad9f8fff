// The engine on a thread of its own, so that the page stays responsive. It fetches the module and the models, steps while it is told to,
// and sends views, one for each step. While it plays, it sends them twenty times a second at most, several at once.
//
//   page ── load, open, start, startScenario, cancel, pace, step ────────►
//   page ◄── loading, ready, views, cancelled, refused, failed ────
"use strict";

importScripts("engine.js");

const BETWEEN_VIEWS_MS = 50;

/** Fetches a file; `arrived(bytes)` is called with each part that comes. */
async function fetched(file, arrived) {
  const answer = await fetch(file, { cache: "no-cache" });
  if (!answer.ok) {
    throw new Error(`${file} can't be fetched (status ${answer.status}).`);
  }
  const parts = [];
  const reader = answer.body.getReader();
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    parts.push(value);
    arrived(value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

let ask;
/** Which pool this is: a view of an earlier one can still be on its way. */
let session = 0;
/** How often sequences were asked for in this pool. */
let round = 0;
/** Steps a second; 0 while it does not play. */
let pace = 0;
let isScheduled = false;
let sentAt = 0;
/** Those that are not sent yet. */
let views = [];

function take(view, isNow) {
  if (view.sequences.length === 0) {
    pace = 0;
  }
  views.push(view);
  if (isNow || view.sequences.length === 0 || performance.now() - sentAt >= BETWEEN_VIEWS_MS) {
    sentAt = performance.now();
    postMessage({ session, round, views });
    views = [];
  }
}

function step(isNow) {
  take(ask("step"), isNow);
}

/** Steps until there is nothing left to do. Between two steps, messages are heard. */
function go() {
  isScheduled = false;
  if (pace > 0) {
    const began = performance.now();
    attempt(() => step(false));
    again(1000 / pace - (performance.now() - began));
  }
}

function again(wait) {
  if (pace > 0 && !isScheduled) {
    isScheduled = true;
    setTimeout(go, Math.max(wait, 0));
  }
}

function attempt(what) {
  try {
    what();
  } catch (error) {
    pace = 0;
    postMessage(error instanceof Refusal ? { refused: error.message } : { failed: error.message });
  }
}

const commands = {
  async load({ sizes, hasDraft }) {
    const files = ["engine.wasm", ...MODEL_FILES, ...(hasDraft ? DRAFT_FILES : [])];
    const total = files.reduce((sum, file) => sum + sizes[file], 0);
    let loaded = 0;
    const arrived = (n) => {
      loaded += n;
      postMessage({ loading: Math.min(loaded / total, 1) });
    };
    const [module, ...rest] = await Promise.all(files.map((file) => fetched(file, arrived)));
    ask = await openEngine(module, rest);
    postMessage({ ready: true });
  },
  open({ session: number, settings }) {
    session = number;
    pace = 0;
    views = [];
    try {
      ask({ open: settings });
    } catch (error) {
      // Without a pool, nothing else can be asked.
      postMessage({ failed: error.message });
    }
  },
  start({ round: number, start }) {
    round = number;
    take(ask({ start }), true);
  },
  startScenario({ round: number }) {
    round = number;
    take(ask("start_scenario"), true);
  },
  cancel({ id }) {
    let refusal;
    try {
      take(ask({ cancel: id }), true);
    } catch (error) {
      refusal = error.message;
    }
    postMessage({ cancelled: id, refusal });
  },
  pace({ stepsPerSecond }) {
    pace = stepsPerSecond;
    again(0);
  },
  step() {
    pace = 0;
    step(true);
  },
};

onmessage = ({ data: { command, ...rest } }) => {
  if (command === "load") {
    commands.load(rest).catch((error) => postMessage({ failed: error.message }));
  } else {
    attempt(() => commands[command](rest));
  }
};

// Draws the views that /pages sends, twenty times a second at most, and asks the server for sequences, at the pace that the
// reader has chosen. A view is whole, so nothing is lost if one is left out; only what has ended comes once.
"use strict";

/** The server sends something at least every ten seconds. */
const SILENCE_MS = 25_000;

const $ = (id) => document.getElementById(id);

function show(id, className, message) {
  $(id).className = className;
  Controls.write($(id), message);
}

const say = (message, isBad = false) => show("says", isBad ? "bad" : "", message);
const connection = (state, message) => show("connection", state, message);

const cancel = (id) => send("DELETE", `sequences/${id}`);
const idle = "No sequence is running or waiting. Press “Eight at once”.";
const newPool = (model) => new PoolView($("pool"), { model, cancel, say, idle });
let pool = newPool("");
/** The views that are not drawn yet. */
let waiting = [];

/** Draws the newest view in the next frame: a slow computer leaves views out instead of falling behind. */
function drawSoon(view) {
  waiting.push(view);
  requestAnimationFrame(() => {
    const views = waiting;
    waiting = [];
    if (views.length > 0) {
      const { sequences, pace, viewer, steps } = views.at(-1);
      number = viewer;
      connection("here", "Connected");
      Controls.write($("slowed"), slowed(pace));
      if (controls.take(pool.take(views), sequences.length > 0, steps)) {
        pool.bringIntoSight();
      }
    }
  });
}

/** This viewer's number. */
let number;
const setPace = (rate, steps = 0) =>
  send("POST", "pace", { viewer: number, steps_per_second: Number.isFinite(rate) ? rate : null, steps });
const controls = new Controls.PaceControls("playing", 15, { pace: setPace, step: () => setPace(0, 1) });
$("pace").append(controls.root);

/** Who slows the server down, and until when. */
function slowed(pace) {
  if (!pace) {
    return "The server steps at full speed.";
  }
  const { steps_per_second: rate, viewer } = pace;
  const what = rate > 0 ? `The server takes ${rate} ${rate > 1 ? "steps" : "step"} a second` : "The server is paused";
  return `${what}, for all its clients, until you choose otherwise or ${viewer === number ? "close this page" : "the page that did so is closed"}.`;
}

/** Takes views until there are no more. Returns what came: "views", a "refusal", or a "key" to try. */
async function watchOnce() {
  const silence = new AbortController();
  let timer = 0;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENCE_MS);
  };
  heard();
  try {
    const answer = await fetch("pages", { headers: headers(), signal: silence.signal, cache: "no-store" });
    if (answer.status === 401) {
      clearTimeout(timer);
      await askForKey();
      return "key";
    }
    if (!answer.ok) {
      connection("lost", await refusalOf(answer));
      return "refusal";
    }
    const models = await fetch("v1/models", { headers: headers() });
    // This may be a different server, whose sequences have the same numbers.
    pool = newPool((await models.json()).data[0].id);
    waiting = [];
    controls.to("playing");
    let rest = "";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
      heard();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events.filter((line) => line.startsWith("data: "))) {
        drawSoon(JSON.parse(event.slice(6)));
      }
    }
    return "views";
  } finally {
    clearTimeout(timer);
  }
}

async function watch() {
  for (let wait = 1; ; wait = Math.min(2 * wait, 8)) {
    const came = await watchOnce().catch(() => "nothing");
    if (came === "key") {
      continue;
    }
    if (came !== "refusal") {
      connection("lost", "Connection lost, connecting again");
    }
    wait = came === "views" ? 0.5 : wait;
    await new Promise((done) => { setTimeout(done, 1000 * wait); });
  }
}

/** The API key, forgotten with the window. */
let key = "";
const headers = () => (key ? { Authorization: `Bearer ${key}` } : {});

/** Waits until a key has been typed. */
function askForKey() {
  const form = $("key");
  connection("lost", key ? "That is not the key" : "The key is missing");
  form.hidden = false;
  $("key-value").focus();
  return new Promise((done) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      key = $("key-value").value.trim();
      $("key-value").value = "";
      form.hidden = true;
      $("prompt").focus();
      connection("", "Connecting");
      done();
    }, { once: true });
  });
}

async function refusalOf(answer) {
  const body = await answer.json().catch(() => null);
  return body?.error?.message ?? `The server answers with status ${answer.status}.`;
}

/** Sends a request and waits for the whole answer. Returns its status, and why it is refused if it is. */
async function send(method, path, body) {
  const type = body ? { "Content-Type": "application/json" } : {};
  try {
    const answer = await fetch(path, { method, body: JSON.stringify(body), headers: { ...type, ...headers() } });
    const refusal = answer.ok ? undefined : await refusalOf(answer);
    // To its end, which may come late.
    await (answer.bodyUsed || answer.arrayBuffer());
    return { status: answer.status, refusal };
  } catch {
    return { refusal: "The answer broke off before its end." };
  }
}

async function ask(n) {
  if (controls.state === "playing") {
    await setPace(controls.stepsPerSecond);
  }
  say(n === 1 ? "Requested 1 sequence." : `Requested ${n} sequences.`);
  const { refusal } = await send("POST", "v1/completions", { prompt: $("prompt").value, max_tokens: Number($("most").value), n });
  if (refusal !== undefined) {
    say(refusal, true);
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(1);
});
$("eight").addEventListener("click", () => ask(8));
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask(1);
  }
});

watch();

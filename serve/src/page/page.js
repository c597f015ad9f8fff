// Draws what /pages tells: a view of the pool and its texts, newest first come, twenty times a second at most. A view is
// whole, so nothing is lost if one is left out; only what has ended comes once.
//
// Whatever a model or a prompt says is text, and becomes part of the page as text alone.
"use strict";

const COLOURS = 8;
/** Texts that are shown after their end, and texts that are shown while they wait. */
const MOST_ENDED = 8;
const MOST_WAITING = 24;
const MOST_PAGES = 16384;
/** The server gives a sign of life every ten seconds. */
const SILENCE_MS = 25_000;
/** Browsers keep six connections to a server, and one of them shows the pages. */
const MOST_REQUESTS = 5;

const $ = (id) => document.getElementById(id);
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const listed = (items) => (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items.join(""));

function element(name, className, parent) {
  const made = document.createElement(name);
  made.className = className;
  parent?.append(made);
  return made;
}

/** Changes only what is not so already: a page that does not change costs nothing. */
function write(target, text) {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}

function tell(message, isBad = false) {
  $("says").classList.toggle("bad", isBad);
  write($("says"), message);
}

/** A wish to be forgotten with the window. */
let key = "";
const headers = () => (key ? { Authorization: `Bearer ${key}` } : {});

// ── Letters and colours ──────────────────────────────────────────────────────────────────────────────────────────────

/** Each text that is shown has a place of its own: its letter, and its colour. */
const places = new Map();

function placeOf(id) {
  if (!places.has(id)) {
    const taken = new Set(places.values());
    let place = 0;
    while (taken.has(place)) {
      place += 1;
    }
    places.set(id, place);
  }
  return places.get(id);
}

function letter(id) {
  const place = placeOf(id);
  const first = String.fromCharCode(65 + (place % 26));
  return place < 26 ? first : first + Math.floor(place / 26);
}

function dress(target, id) {
  const place = placeOf(id);
  target.dataset.colour = place % COLOURS;
  target.classList.toggle("striped", place % (2 * COLOURS) >= COLOURS);
}

// ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────

const grid = $("grid");
/** What each page shows, as a string that changes with it; and its element. */
let shown = [];
let cells = [];
/** The page that the arrow keys have come to, that the pointer is on; the text that is pointed at. */
let current = -1;
let pointed = -1;
let marked = null;
let view = null;
/** For each page the texts that have it. */
let owners = [];

function build(count) {
  const drawn = Math.min(count, MOST_PAGES);
  grid.dataset.size = drawn <= 300 ? 1 : drawn <= 700 ? 2 : drawn <= 1600 ? 3 : 4;
  cells = Array.from({ length: drawn }, (_, page) => {
    const cell = element("span", "page");
    cell.id = `page-${page}`;
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-label", `page ${page}`);
    return cell;
  });
  grid.replaceChildren(...cells);
  shown = cells.map(() => "");
  current = -1;
}

function drawPages() {
  const count = view.owners.length;
  if (cells.length !== Math.min(count, MOST_PAGES)) {
    build(count);
  }
  owners = Array.from({ length: count }, () => []);
  const fills = new Map();
  for (const text of view.texts) {
    text.pages.forEach((page, at) => {
      owners[page].push(text.id);
      fills.set(page, Math.min(text.rows - at * view.page_size, view.page_size));
    });
  }
  cells.forEach((cell, page) => {
    const texts = owners[page];
    const kept = view.owners[page] > texts.length;
    const now = texts.length > 0 ? `${texts.join()} ${kept} ${fills.get(page)}` : kept ? "kept" : "";
    if (now !== shown[page]) {
      const before = shown[page];
      shown[page] = now;
      drawPage(cell, page, texts, kept, fills.get(page));
      const had = before !== "" && before !== "kept";
      cell.classList.toggle("came", texts.length > 0 && !had);
      cell.classList.toggle("went", texts.length === 0 && had);
    }
  });
  mark();
}

function drawPage(cell, page, texts, kept, fill) {
  cell.className = "page";
  delete cell.dataset.colour;
  cell.removeAttribute("style");
  let word = "";
  if (texts.length === 1) {
    cell.classList.add("own");
    dress(cell, texts[0]);
    cell.style.setProperty("--full", `${(100 * fill) / view.page_size}%`);
    word = letter(texts[0]);
  } else if (texts.length > 1) {
    cell.classList.add("shared");
    const some = texts.slice(0, 4);
    const bands = some.map((id, at) => {
      const edges = [at, at + 1].map((edge) => `${(100 * edge) / some.length}%`).join(" ");
      return `var(--fill-${placeOf(id) % COLOURS}) ${edges}`;
    });
    cell.style.setProperty("--bands", `linear-gradient(90deg, ${bands.join(", ")})`);
    word = String(texts.length);
  } else if (kept) {
    cell.classList.add("kept");
  }
  cell.classList.toggle("also", kept && texts.length > 0);
  if (word === "") {
    cell.replaceChildren();
  } else if (cell.textContent !== word) {
    const bold = element("b", "");
    bold.textContent = word;
    cell.replaceChildren(bold);
  }
  cell.setAttribute("aria-label", `page ${page}: ${whose(page)}`);
}

/** Who has a page, in words. */
function whose(page) {
  const texts = owners[page] ?? [];
  const kept = view.owners[page] > texts.length;
  if (texts.length === 0) {
    return kept ? "only the prefix cache has it" : "free";
  }
  const names = texts.map(letter);
  const word = texts.length > 1 ? `shared by ${texts.length} texts, ${listed(names)}` : `text ${names[0]}`;
  return kept ? `${word}; the prefix cache has it, too` : word;
}

/** Lights what is pointed at: the pages of a text, the texts of a page. */
function mark() {
  const pages = new Set(view?.texts.find((text) => text.id === marked)?.pages);
  grid.classList.toggle("marking", pages.size > 0);
  const page = pointed >= 0 ? pointed : document.activeElement === grid ? current : -1;
  cells.forEach((cell, at) => {
    // Most are as they were: reading a class is cheap, writing one is not.
    const isMarked = pages.has(at) || at === pointed;
    if (cell.classList.contains("marked") !== isMarked) {
      cell.classList.toggle("marked", isMarked);
    }
  });
  const texts = new Set(owners[page]);
  for (const [id, card] of cards) {
    card.box.classList.toggle("marked", texts.has(id));
  }
  if (page >= 0 && view) {
    const used = view.texts.find((text) => text.pages.includes(page));
    const fill = used && Math.min(used.rows - used.pages.indexOf(page) * view.page_size, view.page_size);
    const slots = used ? `, ${fill} of ${plural(view.page_size, "slot")} filled` : "";
    write($("page-says"), `Page ${page}: ${whose(page)}${slots}.`);
  }
}

function goTo(page) {
  if (cells.length === 0) {
    return;
  }
  cells[current]?.classList.remove("current");
  cells[current]?.removeAttribute("aria-selected");
  current = Math.min(Math.max(page, 0), cells.length - 1);
  cells[current].classList.add("current");
  cells[current].setAttribute("aria-selected", "true");
  cells[current].scrollIntoView({ block: "nearest" });
  grid.setAttribute("aria-activedescendant", cells[current].id);
  mark();
}

grid.addEventListener("keydown", (event) => {
  const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const at = Math.max(current, 0);
  const to = {
    ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - columns, ArrowDown: at + columns, Home: 0, End: cells.length - 1,
  }[event.key];
  if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) {
    return;
  }
  event.preventDefault();
  if (to >= 0 && to < cells.length) {
    goTo(to);
  }
});
grid.addEventListener("focus", () => goTo(Math.max(current, 0)));
grid.addEventListener("blur", () => mark());
grid.addEventListener("pointerover", (event) => {
  pointed = cells.indexOf(event.target.closest(".page"));
  mark();
});
grid.addEventListener("pointerleave", () => {
  pointed = -1;
  mark();
});
grid.addEventListener("animationend", (event) => event.target.classList.remove("came", "went"));

// ── Texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────

const cards = new Map();
/** Texts that have ended; those of the newest view first. */
let ended = [];

function makeCard(id) {
  const box = element("li", "");
  const head = element("div", "head", box);
  const badge = element("span", "badge", head);
  const what = element("span", "what", head);
  const cancel = element("button", "", head);
  cancel.type = "button";
  cancel.textContent = "Cancel";
  const story = element("p", "story", box);
  story.tabIndex = 0;
  const prompt = element("span", "prompt", story);
  const text = element("span", "", story);
  // Whoever reads further up is not taken to the newest word.
  const reader = { isBack: false };
  story.addEventListener("scroll", () => {
    reader.isBack = story.scrollTop + story.clientHeight < story.scrollHeight - 40;
  });
  const card = { box, what, cancel, story, prompt, text, reader };
  dress(box, id);
  dress(badge, id);
  badge.textContent = letter(id);
  cancel.setAttribute("aria-label", `Cancel text ${letter(id)}`);
  story.setAttribute("aria-label", `Text ${letter(id)}`);
  story.setAttribute("role", "group");
  cancel.addEventListener("click", () => end(id));
  const light = (isOn) => () => {
    marked = isOn ? id : marked === id ? null : marked;
    mark();
  };
  box.addEventListener("pointerenter", light(true));
  box.addEventListener("pointerleave", light(false));
  box.addEventListener("focusin", light(true));
  box.addEventListener("focusout", light(false));
  cards.set(id, card);
  return card;
}

function says(text, queue) {
  const tokens = `${text.new_tokens} of ${plural(text.max_new_tokens, "new token")}`;
  if (text.state === "running") {
    const found = text.found > 0 ? `, ${text.found} of ${text.n_prompt} of its prompt found` : "";
    const doing = text.rows < text.n_prompt ? `reads its prompt, ${text.rows} of ${text.n_prompt}` : tokens;
    return `${doing}, ${plural(text.pages.length, "page")}${found}`;
  }
  const place = `waits, number ${queue} in the queue`;
  return text.state === "preempted" ? `lost its pages and ${place}; ${tokens}` : place;
}

const REASONS = {
  stop: "came to its end", length: "has all its tokens", abort: "was cancelled", error: "has failed",
};

function drawTexts() {
  const running = view.texts.filter((text) => text.state === "running");
  const waiting = view.texts.filter((text) => text.state !== "running");
  const live = [...running, ...waiting.slice(0, MOST_WAITING)];
  const gone = ended.slice(0, MOST_ENDED);
  const order = [...live, ...gone];
  const wanted = new Set(order.map(({ id }) => id));
  for (const [id, card] of cards) {
    if (!wanted.has(id)) {
      card.box.remove();
      cards.delete(id);
    }
  }
  const alive = new Set(view.texts.map(({ id }) => id));
  for (const id of places.keys()) {
    if (!alive.has(id) && !wanted.has(id)) {
      places.delete(id);
    }
  }
  order.forEach((text, at) => {
    const card = cards.get(text.id) ?? makeCard(text.id);
    const isOver = text.reason !== undefined;
    const queue = at - running.length + 1;
    write(card.what, isOver ? `${REASONS[text.reason] ?? text.reason}, ${plural(text.new_tokens, "new token")}` : says(text, queue));
    card.box.classList.toggle("over", isOver);
    if (isOver && !card.cancel.hidden) {
      if (document.activeElement === card.cancel) {
        card.story.focus();
      }
      card.cancel.hidden = true;
    }
    write(card.prompt, text.prompt);
    write(card.text, text.text);
  });
  const focused = document.activeElement;
  // From the end: a text that has ended goes down, and the others stay where they are, with their focus.
  let next = null;
  for (const { id } of order.toReversed()) {
    const { box } = cards.get(id);
    if (box.parentNode !== $("texts") || box.nextSibling !== next) {
      $("texts").insertBefore(box, next);
    }
    next = box;
  }
  if (document.activeElement !== focused) {
    // What is moved loses it.
    focused.focus({ preventScroll: true });
  }
  for (const { story, reader } of cards.values()) {
    if (!reader.isBack) {
      story.scrollTop = story.scrollHeight;
    }
  }
  $("nobody").hidden = order.length > 0;
  const more = waiting.length - MOST_WAITING;
  write($("more"), more > 0 ? `And ${plural(more, "more text")} in the queue.` : "");
}

/** Ends a text, and says what becomes of its pages. */
async function end(id) {
  const text = view.texts.find((found) => found.id === id);
  const name = letter(id);
  const alone = (text?.pages ?? []).filter((page) => owners[page].length === 1);
  const kept = alone.filter((page) => view.owners[page] > 1).length;
  const free = alone.length - kept;
  const left = (text?.pages.length ?? 0) - alone.length;
  try {
    const answer = await fetch(`sequences/${id}`, { method: "DELETE", headers: headers() });
    if (!answer.ok) {
      tell(answer.status === 404 ? `Text ${name} has ended already.` : await refusalOf(answer), answer.status !== 404);
      return;
    }
  } catch {
    tell(`Text ${name} could not be cancelled: the server does not answer.`, true);
    return;
  }
  const are = (n) => (n === 1 ? `${n} is` : `${n} are`);
  const parts = [
    free && `${are(free)} free again`, kept && `${are(kept)} kept by the prefix cache alone`, left && `${are(left)} still with other texts`,
  ];
  const said = listed(parts.filter(Boolean));
  tell(`Text ${name} is cancelled. ${said ? `Of its pages ${said}.` : "It had no pages."}`);
}

// ── Numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function drawNumbers() {
  const all = view.owners.length;
  const free = view.owners.filter((count) => count === 0).length;
  const used = owners.filter((texts) => texts.length > 0).length;
  const kept = all - free - used;
  const part = (name, share) => {
    document.querySelector(`.bar .${name}`).style.width = `${100 * share}%`;
  };
  part("with-texts", used / all);
  part("kept", kept / all);
  write($("pages-say"), `${used} with texts, ${kept} kept by the prefix cache, ${free} free`);
  const read = view.texts.length > 0 ? view.read : 0;
  part("budget", read / view.budget);
  write($("budget-says"), `${read} of ${plural(view.budget, "token")} read`);
  const { looked_for, found, preemptions, computed_again } = view.counts;
  const rate = looked_for > 0 ? `${Math.round((100 * found) / looked_for)} %: ` : "";
  write($("hits-say"), `${rate}${found.toLocaleString("en")} of ${looked_for.toLocaleString("en")} prompt tokens found`);
  const running = view.texts.filter((text) => text.state === "running").length;
  write($("queue-says"), `${running} of ${view.most_running} run, ${view.texts.length - running} wait`);
  write($("steps-say"), `${view.steps.toLocaleString("en")}, for ${plural(view.counts.new_tokens, "new token")}`);
  write($("lost-says"), `${preemptions.toLocaleString("en")}, ${plural(computed_again, "token")} computed again`);
  const drawn = all > MOST_PAGES ? `, the first ${MOST_PAGES.toLocaleString("en")} of them drawn` : "";
  write($("about"), `${model ? `${model}: ` : ""}${plural(all, "page")} of ${plural(view.page_size, "slot")}${drawn}`);
}

// ── Watching ─────────────────────────────────────────────────────────────────────────────────────────────────────────

let model = "";
let isDrawing = false;

function draw() {
  isDrawing = false;
  drawTexts();
  drawPages();
  drawNumbers();
}

function take(next) {
  const wasBusy = view !== null && view.texts.length > 0;
  ended = [...next.ended, ...ended].slice(0, MOST_ENDED);
  view = next;
  if (!isDrawing) {
    isDrawing = true;
    requestAnimationFrame(draw);
  }
  if (wasBusy && next.texts.length === 0) {
    tell("All texts have ended. What the prefix cache keeps is hatched.");
  }
}

function connection(state, says) {
  $("connection").className = state;
  write($("connection"), says);
}

async function refusalOf(answer) {
  const body = await answer.json().catch(() => null);
  return body?.error?.message ?? `The server answers with status ${answer.status}.`;
}

/** Takes views until there are no more. Whether there were any; "key" if there is a new key to try. */
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
      return false;
    }
    const named = await fetch("v1/models", { headers: headers() }).then((found) => found.json());
    model = named.data[0].id;
    // Another server, perhaps, whose texts have the same numbers.
    ended = [];
    places.clear();
    for (const card of cards.values()) {
      card.box.remove();
    }
    cards.clear();
    build(0);
    connection("here", "Connected");
    let rest = "";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
      heard();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event.startsWith("data: ")) {
          take(JSON.parse(event.slice(6)));
        }
      }
    }
    return true;
  } finally {
    clearTimeout(timer);
  }
}

const seconds = (n) => new Promise((done) => { setTimeout(done, 1000 * n); });

async function watch() {
  for (let wait = 1; ; wait = Math.min(2 * wait, 8)) {
    try {
      const seen = await watchOnce();
      if (seen === "key") {
        continue;
      }
      wait = seen ? 0.5 : wait;
      if ($("connection").className !== "lost") {
        connection("lost", "Connection lost, connecting again");
      }
    } catch {
      connection("lost", "Connection lost, connecting again");
    }
    await seconds(wait);
  }
}

/** Waits until somebody has typed a key. */
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

// ── Asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────

let open = 0;

async function ask(n) {
  const body = { prompt: $("prompt").value, max_tokens: Number($("most").value), n };
  tell(
    open < MOST_REQUESTS
      ? `Asked for ${plural(n, "text")}.`
      : `${plural(n, "text")} will be asked for when an earlier request is answered: a browser has no more at a time.`,
  );
  open += 1;
  try {
    const answer = await fetch("v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(body),
    });
    if (!answer.ok) {
      tell(await refusalOf(answer), true);
      return;
    }
    await answer.arrayBuffer();
  } catch {
    tell("The server did not answer to the end.", true);
  } finally {
    open -= 1;
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

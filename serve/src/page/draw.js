// Draws a view of the pool and its sequences: the pages, a card for each sequence, and the numbers.
//
// What a model generates and what a prompt says becomes part of the page as text, never as HTML.
"use strict";

const COLOURS = 8;
/** Sequences that are shown after their end, and while they wait. */
const MOST_ENDED = 8;
const MOST_WAITING = 24;
const MOST_PAGES = 16384;

const $ = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en");
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;
const listed = (items) => (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items.join(""));

function element(name, className, parent) {
  const made = document.createElement(name);
  made.className = className;
  parent?.append(made);
  return made;
}

/** Changes only what differs: a page that does not change costs nothing. */
function write(target, text) {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}

function say(message, isBad = false) {
  $("says").classList.toggle("bad", isBad);
  write($("says"), message);
}

/** A to Z, A1 to Z1, and so on. */
const letter = (id) => String.fromCharCode(65 + (id % 26)) + (id < 26 ? "" : Math.floor(id / 26));

function dress(target, id) {
  target.style.setProperty("--fill", `var(--fill-${id % COLOURS})`);
  target.style.setProperty("--on", `var(--ink-${id % COLOURS})`);
}

const grid = $("grid");
/** What each page shows, as a string that changes with it; and its element. */
let shown = [];
let cells = [];
/** The page that the arrow keys have come to, the one that the pointer is on; the sequence that is pointed at. */
let current = -1;
let pointed = -1;
let marked = null;
let view = null;
/** For each page the sequences that own it, and how many of its slots are filled. */
let holders = [];
let filled = [];

/** Whether the prefix cache owns a page, alone or with sequences. */
const isCached = (page) => view.owners[page] > holders[page].length;

function build(count) {
  const drawn = Math.min(count, MOST_PAGES);
  grid.classList.toggle("many", drawn > 500);
  cells = Array.from({ length: drawn }, (_, page) => {
    const cell = element("span", "page");
    cell.id = `page-${page}`;
    cell.setAttribute("role", "option");
    return cell;
  });
  grid.replaceChildren(...cells);
  shown = [];
  current = -1;
}

function drawPages() {
  const count = view.owners.length;
  if (cells.length !== Math.min(count, MOST_PAGES)) {
    build(count);
  }
  holders = Array.from({ length: count }, () => []);
  filled = [];
  for (const { id, pages, rows } of view.sequences) {
    pages.forEach((page, at) => {
      holders[page].push(id);
      filled[page] = Math.min(rows - at * view.page_size, view.page_size);
    });
  }
  cells.forEach((cell, page) => {
    const ids = holders[page];
    const now = ids.length > 0 ? `${ids.join()} ${isCached(page)} ${filled[page]}` : isCached(page) ? "cached" : "";
    if (now !== shown[page]) {
      shown[page] = now;
      drawPage(cell, page);
    }
  });
  mark();
}

function drawPage(cell, page) {
  const ids = holders[page];
  const kind = ids.length > 1 ? "shared" : ids.length === 1 ? "own" : isCached(page) ? "cached" : "free";
  cell.className = `page ${kind}`;
  cell.removeAttribute("style");
  if (kind === "own") {
    dress(cell, ids[0]);
    cell.style.setProperty("--full", `${(100 * filled[page]) / view.page_size}%`);
  } else if (kind === "shared") {
    const some = ids.slice(0, 4);
    const edge = (at) => `${(100 * at) / some.length}%`;
    const bands = some.map((id, at) => `var(--fill-${id % COLOURS}) ${edge(at)} ${edge(at + 1)}`);
    cell.style.setProperty("--bands", `linear-gradient(90deg, ${bands.join(", ")})`);
  }
  cell.classList.toggle("also", isCached(page) && ids.length > 0);
  write(cell, kind === "shared" ? `${ids.length}` : ids.map(letter).join(""));
  cell.setAttribute("aria-label", `page ${page}: ${whose(page)}`);
}

/** Who owns a page, in words. */
function whose(page) {
  const names = holders[page].map(letter);
  if (names.length === 0) {
    return isCached(page) ? "only the prefix cache owns it" : "free";
  }
  const word = names.length > 1 ? `shared by ${names.length} sequences, ${listed(names)}` : `sequence ${names[0]}`;
  return isCached(page) ? `${word}; the prefix cache also owns it` : word;
}

/** Lights what is pointed at: the pages of a sequence, the sequences of a page. */
function mark() {
  const pages = new Set(view?.sequences.find(({ id }) => id === marked)?.pages);
  grid.classList.toggle("marking", pages.size > 0);
  cells.forEach((cell, at) => cell.classList.toggle("marked", pages.has(at) || at === pointed));
  const page = pointed >= 0 ? pointed : document.activeElement === grid ? current : -1;
  for (const [id, card] of cards) {
    card.box.classList.toggle("marked", holders[page]?.includes(id) ?? false);
  }
  if (view && holders[page]) {
    const slots = holders[page].length > 0 ? `, ${filled[page]} of ${plural(view.page_size, "slot")} filled` : "";
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

const cards = new Map();
/** Sequences that have ended; those of the newest view first. */
let ended = [];

function makeCard(id) {
  const box = element("li", "");
  const head = element("div", "head", box);
  const badge = element("span", "badge", head);
  const what = element("span", "what", head);
  const cancel = element("button", "", head);
  const story = element("p", "story", box);
  const card = {
    box, what, cancel, story, prompt: element("span", "prompt", story), output: element("span", "", story), isBack: false,
  };
  dress(box, id);
  dress(badge, id);
  badge.textContent = letter(id);
  cancel.type = "button";
  cancel.textContent = "Cancel";
  cancel.setAttribute("aria-label", `Cancel sequence ${letter(id)}`);
  cancel.addEventListener("click", () => end(id));
  story.tabIndex = 0;
  story.setAttribute("aria-label", `Sequence ${letter(id)}`);
  story.setAttribute("role", "group");
  // A reader who has scrolled back is not taken to the newest word.
  story.addEventListener("scroll", () => {
    card.isBack = story.scrollTop + story.clientHeight < story.scrollHeight - 40;
  });
  for (const [event, isOn] of [["pointerenter", true], ["pointerleave", false], ["focusin", true], ["focusout", false]]) {
    box.addEventListener(event, () => {
      marked = isOn ? id : marked === id ? null : marked;
      mark();
    });
  }
  cards.set(id, card);
  return card;
}

const REASONS = { stop: "came to its end", length: "has all its tokens", abort: "was cancelled", error: "has failed" };

/** What a sequence does. `queue`: its place in the queue, if it waits. */
function doing({ reason, state, rows, new_tokens, max_new_tokens, prompt_tokens, cached_tokens, pages }, queue) {
  if (reason !== undefined) {
    return `${REASONS[reason] ?? reason}, ${plural(new_tokens, "new token")}`;
  }
  const tokens = `${new_tokens} of ${plural(max_new_tokens, "new token")}`;
  if (state === "running") {
    const cached = cached_tokens > 0 ? `, ${cached_tokens} of ${prompt_tokens} prompt tokens cached` : "";
    const progress = rows < prompt_tokens ? `prefill, ${rows} of ${plural(prompt_tokens, "prompt token")}` : tokens;
    return `${progress}, ${plural(pages.length, "page")}${cached}`;
  }
  const place = `waits, number ${queue} in the queue`;
  return state === "preempted" ? `was preempted and ${place}; ${tokens}` : place;
}

function drawSequences() {
  const running = view.sequences.filter(({ state }) => state === "running");
  const waiting = view.sequences.filter(({ state }) => state !== "running");
  const order = [...running, ...waiting.slice(0, MOST_WAITING), ...ended.slice(0, MOST_ENDED)];
  const wanted = new Set(order.map(({ id }) => id));
  for (const [id, card] of cards) {
    if (!wanted.has(id)) {
      card.box.remove();
      cards.delete(id);
    }
  }
  order.forEach((sequence, at) => {
    const card = cards.get(sequence.id) ?? makeCard(sequence.id);
    const isOver = sequence.reason !== undefined;
    card.box.classList.toggle("over", isOver);
    if (isOver && !card.cancel.hidden) {
      if (document.activeElement === card.cancel) {
        card.story.focus();
      }
      card.cancel.hidden = true;
    }
    write(card.what, doing(sequence, at - running.length + 1));
    write(card.prompt, sequence.prompt);
    write(card.output, sequence.text);
  });
  arrange(order);
  $("idle").hidden = order.length > 0;
  const more = waiting.length - MOST_WAITING;
  write($("more"), more > 0 ? `And ${plural(more, "more sequence")} in the queue.` : "");
}

/** Puts the cards in order, and scrolls each to its newest word. */
function arrange(order) {
  const focused = document.activeElement;
  // From the end: one that has ended goes down, and the others stay where they are, with their focus.
  let next = null;
  for (const { id } of order.toReversed()) {
    const { box } = cards.get(id);
    if (box.parentNode !== $("sequences") || box.nextSibling !== next) {
      $("sequences").insertBefore(box, next);
    }
    next = box;
  }
  // What is moved loses it.
  focused.focus({ preventScroll: true });
  for (const { story, isBack } of cards.values()) {
    if (!isBack) {
      story.scrollTop = story.scrollHeight;
    }
  }
}

/** Cancels a sequence, and says what becomes of its pages. */
async function end(id) {
  const name = `Sequence ${letter(id)}`;
  const pages = view.sequences.find((sequence) => sequence.id === id)?.pages ?? [];
  const kept = pages.filter((page) => view.owners[page] > 1).length;
  const { status, refusal } = await send("DELETE", `sequences/${id}`);
  if (refusal !== undefined) {
    say(status === 404 ? `${name} has ended already.` : refusal, status !== 404);
    return;
  }
  const left = `${pages.length - kept} free again, ${kept} kept by the prefix cache or other sequences`;
  say(`${name} is cancelled. ${pages.length > 0 ? `Its ${plural(pages.length, "page")}: ${left}` : "It had no pages"}.`);
}

let model = "";

function drawNumbers() {
  const all = view.owners.length;
  const free = view.owners.filter((count) => count === 0).length;
  const used = holders.filter((ids) => ids.length > 0).length;
  const cached = all - free - used;
  const scheduled = view.sequences.length > 0 ? view.scheduled_tokens : 0;
  for (const [name, share] of [["used", used / all], ["cached", cached / all], ["budget", scheduled / view.budget]]) {
    document.querySelector(`.bar .${name}`).style.width = `${100 * share}%`;
  }
  const { prompt_tokens, cached_tokens, new_tokens, preemptions, recomputed_tokens } = view.counts;
  const running = view.sequences.filter(({ state }) => state === "running").length;
  const drawn = all > cells.length ? `, the first ${number(cells.length)} of them drawn` : "";
  const numbers = {
    "pages-say": `${used} owned by sequences, ${cached} by the prefix cache alone, ${free} free`,
    "budget-says": `${scheduled} of ${plural(view.budget, "token")} scheduled`,
    "hits-say": `${number(cached_tokens)} of ${number(prompt_tokens)} prompt tokens cached`,
    "queue-says": `${running} of at most ${view.most_running} running, ${view.sequences.length - running} waiting`,
    "steps-say": `${number(view.steps)}, for ${plural(new_tokens, "new token")}`,
    "lost-says": `${number(preemptions)}, ${plural(recomputed_tokens, "token")} recomputed`,
    about: `${model ? `${model}: ` : ""}${plural(all, "page")} of ${plural(view.page_size, "slot")}${drawn}`,
  };
  for (const [id, text] of Object.entries(numbers)) {
    write($(id), text);
  }
}

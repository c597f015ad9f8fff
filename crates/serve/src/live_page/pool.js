// A view of a page pool and its sequences: the numbers, the pages, a card for each sequence. It fills the element that
// it is given and knows nothing of the page around it, so that a page can have several.
//
// What a model generates and what a prompt says becomes part of the page as text, never as HTML.
"use strict";

// The block keeps these names out of the page that loads this script: it adds the class and nothing else.
{
  const COLOURS = 8;
  /** Sequences that are shown after their end, and while they wait. */
  const MAX_ENDED = 8;
  const MAX_WAITING = 24;
  const MAX_PAGES = 16384;

  /** The class of each number, its name, and the parts of its bar. */
  const NUMBERS = [
    ["pages-say", "Pages", "used", "cached"],
    ["budget-says", "Token budget", "budget"],
    ["hits-say", "Prefix cache"],
    ["queue-says", "Sequences"],
    ["steps-say", "Steps"],
    ["lost-says", "Preemptions"],
  ];
  const LEGEND = [
    ["own", "A", "sequence A’s; the colour shows how full"],
    ["shared", "3", "shared by three sequences"],
    ["cached", "", "only the prefix cache owns it"],
    ["own also", "A", "the prefix cache also owns it"],
    ["free", "", "free"],
  ];
  const HINT = matchMedia("(hover: none)").matches
    ? "Tap a page to see who owns it, or a sequence to see its pages."
    : "Point at a page, or move with the arrow keys, to see who owns it.";

  const { element, write } = globalThis.Controls;
  const { activity, eventsBetween, holdersOf, letter, listed, number, plural } = globalThis.PoolWords;

  function colour(target, id) {
    target.style.setProperty("--fill", `var(--fill-${id % COLOURS})`);
    target.style.setProperty("--on", `var(--ink-${id % COLOURS})`);
  }

  /** Views made so far: each has ids of its own. */
  let views = 0;

  globalThis.PoolView = class PoolView {
    #id = `pool-${++views}`;
    #options;
    #view = null;
    /** Sequences that have ended; those of the newest view first. */
    #ended = [];
    /** What each page shows, as a string that changes with it; and its element. */
    #shown = [];
    #cells = [];
    /** The page that the arrow keys have come to, the one that the pointer is on; the sequence that is pointed at. */
    #current = -1;
    #pointed = -1;
    #marked = null;
    /** What has just happened: whom it concerns, and which pages. */
    #told = { ids: [], pages: [] };
    /** For each page the sequences that own it, and how many of its slots are filled. */
    #holders = [];
    #filled = [];
    #cards = new Map();
    /** The numbers in words, and the parts of the bars. Empty where the numbers are left out. */
    #words = {};
    #bars = {};
    #grid = element("div", "grid");
    #pageWords = element("p", "page-says", HINT);
    /** Pages that have more owners than their reference counts say, in words. */
    #mistakes = element("p", "mistakes");
    #idle;
    #sequences = element("ol", "sequences");
    #more = element("p", "more");

    /**
     * `model`: its name. `cancel(id)`: asks for the end of a sequence; returns `{ status, refusal }`.
     * `say(message, isBad)`: shows a message. `keepsOrder`: cards stay in the order of their numbers, instead of moving
     * down at their end. `lists`: each card lists the pages of its sequence; at the end,
     * lists and pages stay as they were. `numbers`: whether they are shown. `legend`: the kinds of pages to explain, such as
     * `["own", "free"]`. `names`: of the sequences. `idle`: the words where there is no sequence. `events`: the kinds of events that are told; all
     * but new pages if it is left out.
     */
    constructor(root, options) {
      const kinds = LEGEND.map(([kind]) => kind);
      this.#options = { numbers: true, legend: kinds, idle: "No sequence is running or waiting.", ...options };
      const { numbers, legend, idle } = this.#options;
      this.#idle = element("p", "idle", idle);
      const outputs = this.#section("outputs", "Sequences", this.#idle, this.#sequences, this.#more);
      const parts = [...(numbers ? [this.#makeNumbers()] : []), this.#makeMemory(legend), outputs];
      root.classList.add("pool");
      root.replaceChildren(element("div", "view", ...parts));
      this.#listen(root);
    }

    /** Draws the last of these views, the newest. Returns what happened in them: for each event its step, and words. */
    take(views) {
      const wasBusy = this.#view?.sequences.length > 0;
      const { events } = this.#options;
      const isTold = ({ kind }) => (events ? ["mistake", ...events].includes(kind) : kind !== "page");
      const told = [];
      this.#told = { ids: [], pages: [] };
      for (const next of views) {
        const happened = this.#view ? eventsBetween(this.#view, next).filter(isTold) : [];
        told.push(...happened.map((event) => ({ ...event, step: next.steps })));
        if (happened.length > 0) {
          const [ids, pages] = ["ids", "pages"].map((list) => happened.flatMap((event) => event[list]));
          this.#told = { ids, pages };
        }
        this.#ended = [...next.finished, ...this.#ended].slice(0, MAX_ENDED);
        this.#view = next;
      }
      this.#sequences.classList.remove("stopped");
      const isOver = wasBusy && this.#view.sequences.length === 0;
      const { lists } = this.#options;
      this.#drawSequences();
      if (!(isOver && lists)) {
        this.#drawPages();
      }
      this.#drawNumbers();
      if (isOver) {
        const areAllFree = this.#view.owners.every((count) => count === 0);
        const free = lists ? "The pages are shown as they were in the last step." : "All pages are free again.";
        this.#options.say(`All sequences have ended. ${areAllFree ? free : "The pages that the prefix cache keeps are hatched."}`);
      }
      return told;
    }

    /** Puts the sequences that the last event was about before the others, until the next view. */
    bringIntoSight() {
      this.#sequences.classList.add("stopped");
      this.#cards.get(this.#told.ids[0])?.box.scrollIntoView({ block: "nearest" });
    }

    #section(className, title, ...children) {
      const heading = element("p", "title", title);
      const section = element("section", className, heading, ...children);
      heading.id = `${this.#id}-${className}`;
      section.setAttribute("aria-labelledby", heading.id);
      return section;
    }

    #makeNumbers() {
      const list = NUMBERS.map(([className, name, ...parts]) => {
        const words = element("span", className);
        this.#words[className] = words;
        parts.forEach((part) => { this.#bars[part] = element("i", part); });
        const bar = element("span", "bar", ...parts.map((part) => this.#bars[part]));
        bar.ariaHidden = "true";
        const says = element("dd", "", ...(parts.length > 0 ? [bar] : []), words);
        return element("div", parts.length > 0 ? "wide" : "", element("dt", "", name), says);
      });
      this.#words.about = element("p", "about");
      const section = element("section", "numbers", this.#words.about, element("dl", "", ...list));
      section.ariaLabel = "Numbers";
      return section;
    }

    #makeMemory(kinds) {
      const ariaDescription = "Arrow keys go from page to page.";
      Object.assign(this.#grid, { tabIndex: 0, role: "listbox", ariaLabel: "Pages of the pool", ariaDescription });
      const shown = LEGEND.filter(([kind]) => kinds.includes(kind));
      const items = shown.map(([kind, sign, words]) => element("li", "", element("span", `cell ${kind}`, sign), words));
      this.#mistakes.role = "status";
      const legend = items.length > 0 ? [element("ul", "legend", ...items)] : [];
      return this.#section("memory", "Pages", ...legend, this.#grid, this.#mistakes, this.#pageWords);
    }

    /** Marks what has the focus, the pointer moves to or a finger taps; not what only scrolls past below a pointer. */
    #listen(root) {
      const point = (target) => {
        this.#pointed = this.#cells.indexOf(target?.closest(".cell"));
        const box = target?.closest(".sequences > li");
        this.#marked = [...this.#cards.keys()].find((id) => this.#cards.get(id).box === box) ?? null;
        this.#mark();
      };
      const isMoved = ({ movementX, movementY }) => movementX !== 0 || movementY !== 0;
      root.addEventListener("pointermove", (event) => event.pointerType === "mouse" && isMoved(event) && point(event.target));
      root.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && point());
      root.addEventListener("click", (event) => point(event.target));
      root.addEventListener("focusin", (event) => point(event.target));
      root.addEventListener("focusout", () => point());
      this.#grid.addEventListener("keydown", (event) => this.#moveFocus(event));
      this.#grid.addEventListener("focus", () => this.#select(Math.max(this.#current, 0)));
    }

    /** Whether the prefix cache owns a page, alone or with sequences. */
    #isCached(page) {
      return this.#view.owners[page] > this.#holders[page].length;
    }

    #makeCells(count) {
      this.#cells = Array.from({ length: count }, (_, page) => {
        const cell = element("span", "cell");
        cell.id = `${this.#id}-page-${page}`;
        cell.role = "option";
        if (this.#options.lists) {
          cell.dataset.page = page;
        }
        return cell;
      });
      this.#grid.classList.toggle("many", count > 500);
      this.#grid.replaceChildren(...this.#cells);
    }

    #drawPages() {
      const { owners, sequences, page_size } = this.#view;
      if (this.#cells.length === 0) {
        this.#makeCells(Math.min(owners.length, MAX_PAGES));
      }
      this.#holders = holdersOf(this.#view);
      this.#filled = [];
      for (const { pages, held_tokens } of sequences) {
        pages.forEach((page, at) => { this.#filled[page] = Math.min(held_tokens - at * page_size, page_size); });
      }
      this.#cells.forEach((cell, page) => {
        const ids = this.#holders[page];
        const isCached = this.#isCached(page);
        const now = ids.length > 0 ? `${ids.join()} ${owners[page]} ${this.#filled[page]}` : isCached ? "cached" : "";
        if (now !== this.#shown[page]) {
          this.#shown[page] = now;
          this.#drawPage(cell, page);
        }
      });
      const [first, ...others] = owners.map((_, page) => page).filter((page) => this.#isMistake(page));
      const rest = others.length > 0 ? ` It’s the same with ${plural(others.length, "other page")}.` : "";
      write(this.#mistakes, first === undefined ? "" : `A mistake. Page ${first}: ${this.#ownersOf(first)}.${rest}`);
      const misread = this.#view.wrong_reads?.pages ?? {};
      this.#cells.forEach((cell, page) => {
        const isMisread = page in misread;
        if (isMisread || cell.classList.contains("misread")) {
          this.#drawPage(cell, page);
          cell.classList.toggle("misread", isMisread);
        }
        if (isMisread) {
          const names = misread[page].map(letter);
          write(cell, names.join(""));
          cell.ariaLabel = `page ${page}: read by mistake, ${listed(names)}`;
        }
      });
      this.#mark();
    }

    /** Whether more sequences have a page than its reference count allows: they write over each other's rows. */
    #isMistake(page) {
      return this.#holders[page].length > this.#view.owners[page];
    }

    #drawPage(cell, page) {
      const ids = this.#holders[page];
      const isCached = this.#isCached(page);
      const kind = ids.length > 1 ? "shared" : ids.length === 1 ? "own" : isCached ? "cached" : "free";
      cell.className = `cell ${kind}`;
      cell.removeAttribute("style");
      if (kind === "own") {
        colour(cell, ids[0]);
        cell.style.setProperty("--full", `${(100 * this.#filled[page]) / this.#view.page_size}%`);
      } else if (kind === "shared") {
        const some = ids.slice(0, 4);
        const edge = (at) => `${(100 * at) / some.length}%`;
        const bands = some.map((id, at) => `var(--fill-${id % COLOURS}) ${edge(at)} ${edge(at + 1)}`);
        cell.style.setProperty("--bands", `linear-gradient(90deg, ${bands.join(", ")})`);
      }
      cell.classList.toggle("also", isCached && ids.length > 0);
      cell.classList.toggle("mistake", this.#isMistake(page));
      write(cell, this.#isMistake(page) ? "!" : kind === "shared" ? `${ids.length}` : ids.map(letter).join(""));
      cell.ariaLabel = `page ${page}: ${this.#ownersOf(page)}`;
    }

    /** Who owns a page, in words. */
    #ownersOf(page) {
      const names = this.#holders[page].map(letter);
      if (names.length === 0) {
        return this.#isCached(page) ? "only the prefix cache owns it" : "free";
      }
      if (this.#isMistake(page)) {
        const all = [...new Set(names)];
        const times = names.length > all.length ? " more than once" : "";
        return `${listed(all)} ${all.length > 1 ? "own" : "owns"} it${times}, but its reference count is ${this.#view.owners[page]}`;
      }
      const word = names.length > 1 ? `shared by ${names.length} sequences, ${listed(names)}` : `sequence ${names[0]}`;
      return this.#isCached(page) ? `${word}; the prefix cache also owns it` : word;
    }

    /** Lights what is pointed at: the pages of a sequence, the sequences of a page. */
    #mark() {
      const pages = new Set(this.#view?.sequences.find(({ id }) => id === this.#marked)?.pages);
      this.#grid.classList.toggle("marking", pages.size > 0);
      const told = new Set(this.#told.pages);
      this.#cells.forEach((cell, at) => {
        cell.classList.toggle("marked", pages.has(at) || at === this.#pointed);
        cell.classList.toggle("told", told.has(at));
      });
      const page = this.#pointed >= 0 ? this.#pointed : document.activeElement === this.#grid ? this.#current : -1;
      const ids = this.#holders[page];
      for (const [id, { box }] of this.#cards) {
        box.classList.toggle("marked", id === this.#marked || (ids?.includes(id) ?? false));
        box.classList.toggle("told", this.#told.ids.includes(id));
      }
      if (!ids) {
        write(this.#pageWords, HINT);
      } else {
        const size = plural(this.#view.page_size, "slot");
        const slots = ids.length > 0 ? `, ${this.#filled[page]} of ${size} filled` : "";
        write(this.#pageWords, `Page ${page}: ${this.#ownersOf(page)}${slots}.`);
      }
    }

    #select(page) {
      if (this.#cells.length === 0) {
        return;
      }
      this.#cells[this.#current]?.removeAttribute("aria-selected");
      this.#current = Math.min(Math.max(page, 0), this.#cells.length - 1);
      const cell = this.#cells[this.#current];
      cell.ariaSelected = "true";
      cell.scrollIntoView({ block: "nearest" });
      this.#grid.setAttribute("aria-activedescendant", cell.id);
      this.#mark();
    }

    #moveFocus(event) {
      const columns = getComputedStyle(this.#grid).gridTemplateColumns.split(" ").length;
      const at = Math.max(this.#current, 0);
      const last = this.#cells.length - 1;
      const to = {
        ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - columns, ArrowDown: at + columns, Home: 0, End: last,
      }[event.key];
      if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) {
        return;
      }
      event.preventDefault();
      // In a book the arrow keys also turn to the next chapter.
      event.stopPropagation();
      if (to >= 0 && to <= last) {
        this.#select(to);
      }
    }

    #makeCard(id) {
      const badge = element("span", "badge", letter(id));
      const what = element("span", "what");
      const cancel = element("button", "", "Cancel");
      const prompt = element("span", "prompt");
      const output = element("span", "");
      const list = element("p", "list");
      const story = element("p", "story", prompt, output);
      const box = element("li", "", element("div", "head", badge, what, cancel), ...(this.#options.lists ? [list] : []), story);
      const card = { box, what, cancel, list, story, prompt, output, isBack: false };
      colour(box, id);
      colour(badge, id);
      Object.assign(cancel, { type: "button", ariaLabel: `Cancel sequence ${letter(id)}` });
      cancel.addEventListener("click", () => this.#cancel(id));
      Object.assign(story, { tabIndex: 0, role: "group", ariaLabel: `Sequence ${letter(id)}` });
      // A reader who has scrolled back is not taken to the newest word.
      story.addEventListener("scroll", () => {
        card.isBack = story.scrollTop + story.clientHeight < story.scrollHeight - 40;
      });
      this.#cards.set(id, card);
      return card;
    }

    #drawSequences() {
      const running = this.#view.sequences.filter(({ status }) => status === "running");
      const waiting = this.#view.sequences.filter(({ status }) => status !== "running");
      const order = [...running, ...waiting.slice(0, MAX_WAITING), ...this.#ended];
      const places = new Map(waiting.map(({ id }, at) => [id, at + 1]));
      if (this.#options.keepsOrder) {
        order.sort((a, b) => a.id - b.id);
      }
      const wanted = new Set(order.map(({ id }) => id));
      for (const [id, { box }] of this.#cards) {
        if (!wanted.has(id)) {
          box.remove();
          this.#cards.delete(id);
        }
      }
      for (const sequence of order) {
        const { box, what, cancel, list, story, prompt, output } = this.#cards.get(sequence.id) ?? this.#makeCard(sequence.id);
        const isOver = sequence.reason !== undefined;
        box.classList.toggle("over", isOver);
        if (isOver && !cancel.hidden) {
          if (document.activeElement === cancel) {
            story.focus();
          }
          cancel.hidden = true;
        }
        const name = this.#options.names?.[sequence.id];
        write(what, (name ? `${name}: ` : "") + activity(sequence, places.get(sequence.id)));
        write(prompt, sequence.prompt);
        this.#writeList(list, sequence);
        this.#writeOutput(output, sequence);
      }
      this.#arrange(order);
      this.#idle.hidden = order.length > 0;
      const more = waiting.length - MAX_WAITING;
      write(this.#more, more > 0 ? `And ${plural(more, "more sequence")} in the queue.` : "");
    }

    /** Writes which pages a sequence has, or had at its end. */
    #writeList(list, { pages }) {
      if (pages) {
        const misread = this.#view.wrong_reads?.pages ?? {};
        const items = pages.flatMap((page) => [", ", page in misread ? element("b", "misread", page) : page]);
        list.replaceChildren("Its list: pages ", ...items.slice(1));
      }
    }

    /** Writes an output. From where it is no longer the right one, it is marked. */
    #writeOutput(output, { id, text }) {
      const same = this.#view.wrong_reads?.agree[id] ?? text.length;
      // To the beginning of the word in which it differs.
      const from = same < text.length ? text.lastIndexOf(" ", same) + 1 : text.length;
      const [right, rest] = [text.slice(0, from), text.slice(from)];
      if (output.dataset.from !== `${from}` || output.textContent !== text) {
        output.dataset.from = from;
        output.replaceChildren(right, ...(rest ? [element("mark", "", rest)] : []));
      }
    }

    /** Puts the cards in order, and scrolls each to its newest word. */
    #arrange(order) {
      const focused = document.activeElement;
      // From the end: one that has ended goes down, and the others stay where they are, with their focus.
      let next = null;
      for (const { id } of order.toReversed()) {
        const { box } = this.#cards.get(id);
        if (box.parentNode !== this.#sequences || box.nextSibling !== next) {
          this.#sequences.insertBefore(box, next);
        }
        next = box;
      }
      // What is moved loses it.
      if (this.#sequences.contains(focused)) {
        focused.focus({ preventScroll: true });
      }
      for (const { story, isBack } of this.#cards.values()) {
        if (!isBack) {
          story.scrollTop = story.scrollHeight;
        }
      }
    }

    /** Cancels a sequence, and says what becomes of its pages. */
    async #cancel(id) {
      const name = `Sequence ${letter(id)}`;
      const { sequences, owners } = this.#view;
      const pages = sequences.find((sequence) => sequence.id === id)?.pages ?? [];
      const kept = pages.filter((page) => owners[page] > 1).length;
      const keepers = pages.some((page) => this.#isCached(page)) ? "the prefix cache or other sequences" : "other sequences";
      const { status, refusal } = await this.#options.cancel(id);
      if (refusal !== undefined) {
        this.#options.say(status === 404 ? `${name} has ended already.` : refusal, status !== 404);
        return;
      }
      const left = `${pages.length - kept} free again, ${kept} kept by ${keepers}`;
      const its = pages.length > 0 ? `Its ${plural(pages.length, "page")}: ${left}` : "It had no pages";
      this.#options.say(`${name} is cancelled. ${its}.`);
    }

    #drawNumbers() {
      const { owners, sequences, page_size, token_budget, max_running, steps, totals } = this.#view;
      const all = owners.length;
      const free = owners.filter((count) => count === 0).length;
      const used = this.#holders.filter((ids) => ids.length > 0).length;
      const cached = all - free - used;
      const scheduled = sequences.length > 0 ? this.#view.scheduled_tokens : 0;
      const running = sequences.filter(({ status }) => status === "running").length;
      const drawn = all > this.#cells.length ? `, the first ${number(this.#cells.length)} of them drawn` : "";
      const shares = { used: used / all, cached: cached / all, budget: scheduled / token_budget };
      // A victim's tokens are counted while they are computed again.
      const isOpen = sequences.some(({ preemptions, held_tokens, prompt_tokens, new_tokens }) => preemptions > 0 && held_tokens + 1 < prompt_tokens + new_tokens);
      const n = totals.recomputed_tokens;
      const so = `${plural(n, "token")} recomputed`;
      const recomputed = !isOpen ? so : n === 0 ? "recomputed tokens are counted when it runs again" : `${so} so far; the rest when it runs again`;
      const numbers = {
        "pages-say": `${used} owned by sequences, ${cached} by the prefix cache alone, ${free} free`,
        "budget-says": `${scheduled} of ${plural(token_budget, "token")} scheduled`,
        "hits-say": totals.prompt_tokens === 0 ? "no prompt yet" : `${number(totals.cached_tokens)} of ${number(totals.prompt_tokens)} prompt tokens cached`,
        "queue-says": `${running} of at most ${max_running} running, ${sequences.length - running} waiting`,
        "steps-say": `${number(steps)}, for ${plural(totals.new_tokens, "new token")}`,
        "lost-says": `${number(totals.preemptions)}, ${recomputed}`,
        about: `${this.#options.model}: ${plural(all, "page")} of ${plural(page_size, "slot")}${drawn}`,
      };
      for (const [part, bar] of Object.entries(this.#bars)) {
        bar.style.width = `${100 * shares[part]}%`;
      }
      for (const [name, words] of Object.entries(this.#words)) {
        write(words, numbers[name]);
      }
    }
  };
}

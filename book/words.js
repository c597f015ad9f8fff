// What is said of a pool of pages: the names of its sequences, what each of them does, and what happened between two views.
"use strict";

{
  const REASONS = { stop: "ended its text", length: "reached its limit", abort: "was cancelled", error: "failed" };

  const number = (n) => n.toLocaleString("en");
  const { plural } = globalThis.Controls;
  const listed = (items) => (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items.join(""));
  /** A to Z, A1 to Z1, and so on. */
  const letter = (id) => String.fromCharCode(65 + (id % 26)) + (id < 26 ? "" : Math.floor(id / 26));

  /** The names of sequences: "A and F", or "A to D". */
  function names(ids) {
    const sorted = [...new Set(ids)].sort((a, b) => a - b);
    const isRow = sorted.length > 2 && sorted.at(-1) - sorted[0] === sorted.length - 1;
    return isRow ? `${letter(sorted[0])} to ${letter(sorted.at(-1))}` : listed(sorted.map(letter));
  }

  /** "A takes", "A and B take". */
  const does = (ids, verb) => `${names(ids)} ${verb}${new Set(ids).size === 1 ? "s" : ""}`;
  const some = (pages) => (pages.length > 4 ? plural(pages.length, "page") : `${pages.length > 1 ? "pages" : "page"} ${listed(pages)}`);

  /** What a sequence does. `queue`: its place in the queue, if it waits. */
  function activity({ reason, status, held_tokens, new_tokens, max_new_tokens, prompt_tokens, cached_tokens, pages }, queue) {
    if (reason !== undefined) {
      return `${REASONS[reason] ?? reason}, ${plural(new_tokens, "new token")}`;
    }
    const tokens = `${new_tokens} of ${plural(max_new_tokens, "new token")}`;
    if (status === "running") {
      const cached = cached_tokens > 0 ? `, ${cached_tokens} of ${prompt_tokens} prompt tokens cached` : "";
      const progress = held_tokens < prompt_tokens ? `prefill, ${held_tokens} of ${plural(prompt_tokens, "prompt token")}` : tokens;
      return `${progress}, ${plural(pages.length, "page")}${cached}`;
    }
    const place = `waits, number ${queue} in the queue`;
    return status === "preempted" ? `was preempted and ${place}; ${tokens}` : place;
  }

  /** For each page the sequences that own it. */
  function holdersOf({ owners, sequences }) {
    const holders = owners.map(() => []);
    for (const { id, pages } of sequences) {
      pages.forEach((page) => { holders[page].push(id); });
    }
    return holders;
  }

  /** Lists of the items that have the same key. */
  function grouped(items, key) {
    const groups = new Map();
    items.forEach((item) => groups.set(key(item), [...(groups.get(key(item)) ?? []), item]));
    return groups.values();
  }

  const hits = (sequence) => (sequence ? sequence.cached_tokens + sequence.cached_after_preemption : 0);

  /** Two views, and what the one says of the other. */
  class Change {
    events = [];

    constructor(before, after) {
      Object.assign(this, { before, after, had: holdersOf(before), has: holdersOf(after) });
      this.was = new Map(before.sequences.map((sequence) => [sequence.id, sequence]));
      const running = after.sequences.filter(({ status }) => status === "running");
      /** Sequences that began to run, or did so again; and those that ran before. */
      this.starters = running.filter(({ id }) => this.was.get(id)?.status !== "running");
      this.others = running.filter(({ id }) => this.was.get(id)?.status === "running");
    }

    tell(kind, ids, pages, text) {
      this.events.push({ kind, ids, pages, text });
    }

    wasCached(page) {
      return this.before.owners[page] > this.had[page].length;
    }

    isCached(page) {
      return this.after.owners[page] > this.has[page].length;
    }

    /** The sequences that own a page and did not before. */
    takers(page) {
      return this.has[page].filter((id) => !this.had[page].includes(id));
    }

    /** What became of pages that a sequence had. */
    whereabouts(pages) {
      const taken = pages.filter((page) => this.takers(page).length > 0);
      const [kept, lost] = [true, false].map((is) => pages.filter((page) => !taken.includes(page) && this.isCached(page) === is));
      const free = lost.filter((page) => this.has[page].length === 0);
      const parts = [
        [kept, `the prefix cache keeps ${kept.length}`],
        [taken, `${does(taken.flatMap((page) => this.takers(page)), "take")} ${taken.length}`],
        [lost.filter((page) => !free.includes(page)), `others share ${lost.length - free.length}`],
        [free, free.length === pages.length ? "all are free again" : `${free.length} ${free.length === 1 ? "is" : "are"} free`],
      ];
      return listed(parts.filter(([some]) => some.length > 0).map(([, words]) => words));
    }

    starts() {
      const cached = (sequence) => hits(sequence) - hits(this.was.get(sequence.id));
      const kind = (sequence) =>
        sequence.preemptions > 0 ? `resumed ${sequence.id}` : sequence.forked ? `forked ${sequence.pages}` : `started ${cached(sequence)} ${sequence.prompt_tokens}`;
      for (const group of grouped(this.starters, kind)) {
        const ids = group.map(({ id }) => id);
        const [first] = group;
        const { prompt_tokens, new_tokens, preemptions, forked, pages } = first;
        if (preemptions > 0) {
          this.tell("resumed", ids, pages, `${does(ids, "run")} again, with ${cached(first)} of ${prompt_tokens + new_tokens} tokens still cached`);
        } else if (forked) {
          this.tell("forked", ids, pages, `Forked: ${does([...ids, ...this.has[pages[0]]], "share")} ${plural(pages.length, "page")}`);
        } else if (cached(first) > 0) {
          this.tell("hit", ids, pages, `${does(ids, "start")} with ${cached(first)} of ${prompt_tokens} prompt tokens cached`);
        } else {
          this.tell("started", ids, [], does(ids, "start"));
        }
      }
    }

    ends() {
      for (const { id, preemptions } of this.after.sequences) {
        const was = this.was.get(id);
        if (preemptions > was?.preemptions) {
          this.tell("preempted", [id], was.pages, `${names([id])} is preempted: of its ${plural(was.pages.length, "page")}, ${this.whereabouts(was.pages)}`);
        }
      }
      // Of one that is cancelled, the page says it at once.
      const finished = this.after.finished.filter(({ reason }) => reason !== "abort");
      for (const group of grouped(finished, ({ reason, new_tokens }) => `${reason} ${new_tokens}`)) {
        const [{ reason, new_tokens }] = group;
        const ids = group.map(({ id }) => id);
        const pages = [...new Set(ids.flatMap((id) => this.was.get(id)?.pages ?? []))];
        const rest = pages.length > 0 ? `: of ${ids.length > 1 ? "their" : "its"} ${plural(pages.length, "page")}, ${this.whereabouts(pages)}` : "";
        const what = REASONS[reason] ?? reason;
        this.tell("ended", ids, pages, `${names(ids)} ${ids.length > 1 ? what.replace("its", "their") : what} after ${plural(new_tokens, "token")}${rest}`);
      }
    }

    /** Sequences that have taken tokens back. */
    rewinds() {
      for (const { id, new_tokens, pages } of this.after.sequences) {
        const was = this.was.get(id);
        if (new_tokens < was?.new_tokens) {
          const gone = was.pages.filter((page) => !pages.includes(page));
          const back = gone.length > 0 ? `, and gives back ${some(gone)}` : "";
          this.tell("rewound", [id], gone, `${names([id])} takes tokens back${back}`);
        }
      }
    }

    /** Pages copied before they are written, or given back because the prefix cache has the same tokens; and new ones. */
    tables() {
      const entries = (sequences) =>
        sequences.flatMap(({ id, pages }) => pages.map((page, at) => ({ id, page, old: this.was.get(id)?.pages[at] })));
      const changed = entries(this.others).filter(({ page, old }) => page !== old);
      const isCopy = ({ old }) => this.had[old]?.length > 1;
      const isSwap = (entry) => !isCopy(entry) && this.isCached(entry.page) && (entry.old !== undefined || this.has[entry.page].length > 1);
      for (const group of grouped(changed.filter(isCopy), ({ old }) => old)) {
        const [ids, page] = [group.map(({ id }) => id), group[0].old];
        const keepers = this.has[page].length > 0 ? `, and ${does(this.has[page], "keep")} it` : "";
        this.tell("copied", ids, [page], `${names(ids)} ${ids.length > 1 ? "copy" : "copies"} page ${page} before writing to it${keepers}`);
      }
      const computed = this.starters.filter((sequence) => hits(sequence) === 0 && !sequence.forked);
      const swapped = [...changed.filter(isSwap), ...entries(computed).filter(({ id, page }) => this.isCached(page) && this.has[page][0] !== id)];
      const added = changed.filter((entry) => !isCopy(entry) && !isSwap(entry));
      for (const [kind, found] of [["swapped", swapped], ["page", added]].filter(([, found]) => found.length > 0)) {
        const [ids, pages] = ["id", "page"].map((field) => [...new Set(found.map((entry) => entry[field]))]);
        const freed = `${does(ids, "free")} ${plural(found.length, "full page")}: the same tokens are in ${some(pages)}`;
        this.tell(kind, ids, pages, kind === "swapped" ? freed : `${does(ids, "take")} ${some(pages)}`);
      }
    }

    /** Evicted pages, but for those that an event before it is about. */
    evictions() {
      const told = new Set(this.events.filter(({ kind }) => ["preempted", "swapped"].includes(kind)).flatMap(({ pages }) => pages));
      const found = new Set(this.starters.flatMap((sequence) => sequence.pages.slice(0, hits(sequence) / this.after.page_size)));
      const isEvicted = (page) => this.wasCached(page) && (!this.isCached(page) || (this.takers(page).length > 0 && !found.has(page)));
      const pages = this.after.owners.map((_, page) => page).filter((page) => isEvicted(page) && !told.has(page));
      if (pages.length > 0) {
        const ids = [...new Set(pages.flatMap((page) => this.takers(page)))];
        const takers = ids.length > 0 ? `, and ${does(ids, "take")} ${pages.length > 1 ? "them" : "it"}` : "";
        this.tell("evicted", ids, pages, `The prefix cache evicts ${some(pages)}${takers}`);
      }
    }

    /** Pages that have more owners than their reference counts say: two sequences that write over each other's rows. */
    mistakes() {
      const { wrong_reads } = this.after;
      if (wrong_reads?.first && !this.before.wrong_reads?.first) {
        this.tell("mistake", [], Object.keys(wrong_reads.pages).map(Number), "The first wrong read");
      }
      const isWrong = ({ owners }, holders, page) => holders[page].length > owners[page];
      for (const [page, count] of this.after.owners.entries()) {
        if (isWrong(this.after, this.has, page) && !isWrong(this.before, this.had, page)) {
          this.tell("mistake", this.has[page], [page], `A mistake: ${does(this.has[page], "own")} page ${page}, but its reference count is ${count}`);
        }
      }
    }

    drafts() {
      const { drafted, new: tokens } = this.after.draft ?? {};
      const accepted = tokens?.length - 1;
      if (accepted < drafted?.length) {
        const [instead, rejected] = [tokens[accepted], drafted[accepted]].map((token) => `“${token.trim()}”`);
        const ids = this.after.sequences.map(({ id }) => id);
        this.tell("rejected", ids, [], `${accepted} of ${plural(drafted.length, "draft token")} accepted: the target says ${instead}, not ${rejected}`);
      }
    }
  }

  /** What happened between two views: for each event its kind, whom it concerns, which pages, and words. */
  function eventsBetween(before, after) {
    const change = new Change(before, after);
    if (after.steps > before.steps) {
      change.ends();
      change.rewinds();
      change.starts();
      change.mistakes();
      change.tables();
      change.evictions();
      change.drafts();
    }
    return change.events;
  }

  globalThis.PoolWords = { activity, eventsBetween, holdersOf, letter, listed, number, plural };
}

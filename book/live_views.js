// The live views of the book's pages, by name: the pool and the requests of each, what a reader can change, and the mistakes to switch on.
(() => {
    "use strict";

    const KING =
        "Once upon a time there was a king who had three daughters. The youngest of them was so beautiful that the sun " +
        "itself, which has seen so much, wondered whenever it shone in her face. One day";
    const KING_TOKENS = 42;

    const { plural } = globalThis.Controls;
    const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);
    const pagesTaken = ({ owners }) => owners.filter((owner) => owner > 0).length;

    /** Slots of the pages that sequences own, and how many of them hold a token. */
    function slots({ sequences, page_size }) {
        const taken = sum(sequences.map(({ pages }) => pages.length)) * page_size;
        return { taken, filled: sum(sequences.map(({ held_tokens }) => held_tokens)) };
    }

    /**
     * What runs in each place: the pool, the requests, what a reader can change, the options of its view, and a line about each
     * view that has news (`summary`). `keepsPool`:
     * pressing the button again asks for more in the same pool, instead of doing the same in a new one.
     */
    globalThis.LIVE_VIEWS = {
        home: {
            settings: { pages: 100, page_size: 16, token_budget: 256, max_running: 8, prefix_cache: false },
            starts: [{ prompt: KING, max_new_tokens: 240, seed: 65, samples: 8, fork: true }],
            stepsPerSecond: 15,
            view: { legend: ["own", "shared", "free"] },
            summary: ({ owners, page_size, sequences }, most, [{ max_new_tokens }]) => {
                const reserved = Math.ceil((KING_TOKENS + max_new_tokens) / page_size);
                const fit = Math.floor(owners.length / reserved);
                const all = owners.length;
                const taken = sequences.length > 0 ? `${pagesTaken({ owners })} of ${all} pages taken.` : `All fitted into at most ${most} of ${all} pages.`;
                return `${taken} With ${reserved} pages reserved for each story, enough for the longest, only ${fit} of the eight would fit.`;
            },
        },
        wolf: {
            settings: { pages: 15, page_size: 8, token_budget: 64, max_running: 2, prefix_cache: false },
            starts: [
                { prompt: "Once upon a time there was a wolf", max_new_tokens: 34, seed: 7, samples: 1 },
                { prompt: "Once upon a time there was a princess", max_new_tokens: 34, seed: 7, samples: 1 },
            ],
            breaks: { "one-page-twice": "Break it: give one page to both" },
            stepsPerSecond: 6,
            view: { legend: [], events: ["started", "ended"], names: ["the wolf", "the princess"], lists: true },
        },
        table: {
            settings: { pages: 24, page_size: 16, token_budget: 64, max_running: 1, prefix_cache: false },
            starts: [{ prompt: "Once upon a time", max_new_tokens: 49, seed: 23, samples: 1 }],
            breaks: { "new-page-first": "Put new pages first", "page-too-few": "Round pages down" },
            stepsPerSecond: 6,
            view: { legend: [], events: ["started", "page", "ended"] },
        },
        server: {
            settings: { pages: 256, page_size: 16, token_budget: 256, max_running: 8, prefix_cache: true },
            starts: [{ prompt: KING, max_new_tokens: 300, seed: 1, samples: 8 }],
            controls: [
                { key: "pages", label: "Pages", values: [32, 48, 64, 96, 128, 256] },
                { key: "prompt", label: "Prompt" },
            ],
            stepsPerSecond: 15,
            view: { numbers: true },
            keepsPool: true,
        },
        paged: {
            settings: { pages: 32, page_size: 8, token_budget: 64, max_running: 2, prefix_cache: false },
            starts: [
                { prompt: "The old fox said to the wolf", max_new_tokens: 90, seed: 2, samples: 1 },
                { prompt: "Once upon a time there was a poor miller", max_new_tokens: 110, seed: 3, samples: 1 },
            ],
            controls: [{ key: "page_size", label: "Page size", values: [1, 2, 4, 8, 16, 32, 64], slots: 256 }],
            breaks: { "whole-pages": "Gather whole pages", "stale-rows": "Gather stale rows", "by-page-number": "Gather by page number" },
            view: { legend: [], events: ["started", "page", "ended"] },
            stepsPerSecond: 12,
            summary: (view) => {
                const { taken, filled } = slots(view);
                return `${plural(pagesTaken(view), "page")} taken. ${filled} of their ${plural(taken, "slot")} are filled, ${taken - filled} wasted.`;
            },
        },
        rewind: {
            settings: { pages: 15, page_size: 8, token_budget: 64, max_running: 2, prefix_cache: false },
            starts: [
                { prompt: "Once upon a time there was a wolf", max_new_tokens: 30, seed: 7, samples: 1, rewind: [17, 4] },
                { prompt: "Once upon a time there was a princess", max_new_tokens: 34, seed: 7, samples: 1 },
            ],
            breaks: { "page-back-too-early": "Give back a page too early" },
            stepsPerSecond: 6,
            view: { legend: [], events: ["started", "rewound", "ended"], names: ["the wolf", "the princess"] },
        },
        drafts: {
            settings: { pages: 16, page_size: 8, token_budget: 1, max_running: 1, prefix_cache: false, drafts: 4 },
            starts: [{ prompt: "The king lived in a great castle", max_new_tokens: 100, seed: 0, samples: 1, greedy: true }],
            controls: [{ key: "drafts", label: "Draft tokens per step", values: [1, 2, 3, 4, 6, 8] }],
            breaks: { "draft-remembers": "Keep rejected tokens" },
            view: { legend: [], events: ["rejected", "ended"] },
            stepsPerSecond: 3,
            hasDraft: true,
            summary: ({ counters }) => {
                const { target_passes: steps, new_tokens, drafted, accepted } = counters;
                return `${plural(steps, "step")}, with one pass of the target each, for ${plural(new_tokens, "token")}. ${accepted} of ${plural(drafted, "draft token")} accepted.`;
            },
        },
        fork: {
            settings: { pages: 128, page_size: 8, token_budget: 512, max_running: 8, prefix_cache: false },
            starts: [{ prompt: KING, max_new_tokens: 47, seed: 1, samples: 8, fork: true }],
            controls: [{ key: "fork", label: "Fork the first sample" }],
            breaks: { "write-without-copy": "Write without copying" },
            view: { legend: ["own", "shared", "free"] },
            stepsPerSecond: 8,
            summary: (view, most) => `${plural(pagesTaken(view), "page")} taken, at most ${most} so far.`,
        },
        prefix: {
            settings: { pages: 48, page_size: 8, token_budget: 256, max_running: 4, prefix_cache: true },
            starts: [{ prompt: KING, max_new_tokens: 40, seed: 1, samples: 1 }],
            controls: [{ key: "prompt", label: "Prompt" }],
            breaks: { "key-without-parent": "Look up without the parent", "cached-before-full": "Cache pages before they are full" },
            stepsPerSecond: 15,
            keepsPool: true,
            summary: ({ sequences }) => {
                const newest = sequences.at(-1);
                return newest?.held_tokens === 0 ? "The prompt is looked up in the first step." : newest && `${newest.cached_tokens} of the prompt's ${plural(newest.prompt_tokens, "token")} cached.`;
            },
        },
        scheduler: {
            settings: { pages: 64, page_size: 8, token_budget: 128, max_running: 8, prefix_cache: true },
            starts: [{ prompt: KING, max_new_tokens: 100, seed: 1, samples: 8 }],
            controls: [
                { key: "pages", label: "Pages", values: [24, 32, 48, 64, 96, 128, 160] },
                { key: "token_budget", label: "Token budget", values: [8, 16, 32, 64, 128, 256, 512] },
            ],
            breaks: { "victim-in-plan": "Plan a victim" },
            stepsPerSecond: 12,
            view: { numbers: true },
        },
    };
})();

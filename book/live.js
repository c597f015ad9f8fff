// Runs the engine in a page: where a page has a place for it, a button loads it, and the view of the pool replaces the picture there.
//
// Nothing is fetched before the button is pressed. The engine and its view lie in the folder engine/ beside the pages, which `cargo
// book` fills.
(() => {
    "use strict";

    const { PaceControls, element, plural, slider } = globalThis.Controls;
    const MEGABYTE = 1e6;
    /** How many of the newest steps are listed. */
    const MAX_DRAFTS = 6;

    /** Why nobody noticed that A and B own one page, after a list that shows what happened there. */
    const WHY_UNNOTICED =
        "B writes last, so A read B\u2019s numbers. All that came before is the same for both, so A\u2019s memory is now B\u2019s, and the model " +
        "goes on with B\u2019s story, in A\u2019s own pages, too. No error: each number is a valid one, and none says whose it is.";

    // mdBook writes into each page where the book's first folder is.
    const folder = new URL(`${path_to_root}engine/`, location.href).href;

    /** Loads the view and what is known of the engine, once for a page. */
    let loaded;
    function load() {
        loaded ??= (async () => {
            const answer = await fetch(`${folder}about.json`, { cache: "no-cache" });
            if (!answer.ok) {
                throw new Error("this copy of the book has no engine beside it. The copies that cargo book makes have one");
            }
            const part = (name, attributes) =>
                new Promise((done, failed) => {
                    const made = Object.assign(document.createElement(name), { async: false, ...attributes });
                    made.addEventListener("load", done);
                    made.addEventListener("error", () => failed(new Error("the page view can't be loaded")));
                    document.head.append(made);
                });
            await Promise.all([
                part("link", { rel: "stylesheet", href: `${folder}pool.css` }),
                part("script", { src: `${folder}words.js` }),
                part("script", { src: `${folder}pool.js` }),
            ]);
            return answer.json();
        })();
        loaded.catch(() => {
            loaded = undefined;
        });
        return loaded;
    }

    class Live {
        constructor(place, name) {
            this.place = place;
            this.setup = globalThis.LIVE_VIEWS[name];
            this.settings = { ...this.setup.settings };
            this.starts = this.setup.starts.map((start) => ({ ...start }));
            this.rounds = 0;
            this.session = 0;
            /** The most pages taken at once in this pool. */
            this.most = 0;
            /** What to call once a sequence is cancelled, by its number. */
            this.cancelling = new Map();
            this.controls = new PaceControls("off", this.setup.stepsPerSecond, {
                pace: (stepsPerSecond) => this.send("pace", { stepsPerSecond }),
                step: () => this.send("step"),
                begin: (state, then) => this.press(state, then),
            });
            this.status = element("p", "pbp-live-says");
            this.status.setAttribute("role", "status");
            this.bar = element("progress", "");
            this.bar.setAttribute("aria-label", "Loading");
            this.bar.hidden = true;
            this.summary = element("p", "pbp-live-summary");
            this.summary.setAttribute("role", "status");
            this.drafts = element("ol", "pbp-live-drafts");
            this.root = element("div", "");
            const settings = (this.setup.controls ?? []).map((control) => this.control(control));
            this.controls.root.classList.add("pbp-live-bar");
            const words = [...place.querySelectorAll(":scope > p")].at(-1);
            const breaks = Object.entries(this.setup.breaks ?? {}).map(([name, label]) => this.breakButton(name, label));
            this.controls.go.after(...breaks);
            words.after(this.controls.root, element("div", "pbp-live-bar", ...settings, this.bar), this.drafts, this.summary, this.status);
            // Without these, arrow keys turn mdBook's pages, and a quick swipe opens its sidebar.
            place.addEventListener("keydown", (event) => /^Arrow(Left|Right)$/.test(event.key) && event.stopPropagation());
            place.addEventListener("touchstart", (event) => event.stopPropagation(), { passive: true });
        }

        to(state) {
            this.controls.to(state);
            this.bar.hidden = state !== "loading";
        }

        say(message, isBad = false) {
            this.status.classList.toggle("bad", isBad);
            this.status.textContent = message;
        }

        send(command, rest = {}) {
            this.worker.postMessage({ command, ...rest });
        }

        /** The button was pressed before there is an engine, while it loads, or when all is generated. */
        press(state, then) {
            if (state === "loading") {
                this.end("");
            } else if (state === "done") {
                this.begin(!this.setup.keepsPool || this.settings.mistake !== undefined);
                then();
            } else {
                this.load(then);
            }
        }

        /** Loads the engine, starts the sequences, and calls `then`. */
        load(then) {
            this.to("loading");
            this.controls.root.scrollIntoView();
            this.bar.removeAttribute("value");
            this.then = then;
            // After Stop, and perhaps Run again, this attempt is an old one.
            const attempt = {};
            this.attempt = attempt;
            const ifNew = (use) => (result) => attempt === this.attempt && use(result);
            load().then(
                ifNew((about) => this.startWorker(about)),
                ifNew((error) => this.end(`The engine can't run here: ${error.message}.`, true)),
            );
        }

        startWorker(about) {
            const hasDraft = this.setup.hasDraft ?? false;
            const bytes = Object.entries(about.sizes).reduce((total, [file, size]) => total + (hasDraft || !file.includes("-draft/") ? size : 0), 0);
            this.say(`Loading the engine and a small model, ${(bytes / MEGABYTE).toFixed(1)} MB.`);
            this.about = about;
            this.worker = new Worker(`${folder}worker.js`);
            this.worker.onmessage = ({ data }) => this.hear(data);
            this.worker.onerror = () => this.end("The engine can't run here: its worker doesn't start.", true);
            this.send("load", { sizes: about.sizes, hasDraft });
        }

        hear(data) {
            if (data.loading !== undefined) {
                this.bar.value = data.loading;
            } else if (data.ready) {
                this.place.classList.add("pbp-live-on");
                this.place.append(...(this.setup.view?.lists ? [] : [this.drafts]), this.root);
                this.begin(true);
                this.bar.hidden = true;
                this.then();
            } else if (data.views) {
                if (data.session === this.session && data.round === this.rounds) {
                    this.take(data.views);
                }
            } else if (data.cancelled !== undefined) {
                // What can't be cancelled has ended.
                this.cancelling.get(data.cancelled)?.({ status: 404, refusal: data.refusal });
            } else if (data.refused !== undefined) {
                this.to("done");
                this.say(`${data.refused[0].toUpperCase()}${data.refused.slice(1)}.`, true);
            } else if (data.failed !== undefined) {
                const why = data.failed.replace(/\.$/, "");
                this.end(`The engine ${this.view ? "has stopped" : "can't be loaded"}: ${why}. Press Run to try again.`, true);
            }
        }

        cancel(id) {
            return new Promise((done) => {
                this.cancelling.set(id, done);
                this.send("cancel", { id });
            });
        }

        /** Asks for the sequences, in a new pool or in the one that is there. */
        begin(isNew) {
            if (isNew) {
                this.rounds = 0;
                this.session += 1;
                this.most = 0;
                this.controls.steps = 0;
                this.send("open", { session: this.session, settings: this.settings });
            }
            const cancel = (id) => this.cancel(id);
            const say = (message, isBad) => this.say(message, isBad);
            const options = { model: "storyteller", cancel, say, keepsOrder: true, numbers: false, ...this.setup.view };
            this.view = new PoolView(this.root, options);
            this.drafts.replaceChildren();
            this.happened = undefined;
            this.summary.textContent = "";
            this.controls.line.textContent = "";
            this.say(this.about.says);
            this.rounds += 1;
            // With drafts a mistake changes the bill, not the story.
            if (this.settings.mistake && !this.setup.hasDraft) {
                this.send("startScenario", { round: this.rounds });
                return;
            }
            for (const start of this.starts) {
                // In a pool that goes on, the same seeds would only repeat the same outputs.
                const seed = start.seed + (this.rounds - 1) * start.samples;
                this.send("start", { round: this.rounds, start: { ...start, seed } });
            }
        }

        take(views) {
            if (this.settings.mistake === "one-page-twice") {
                views.forEach(giveToBoth);
            }
            const view = views.at(-1);
            const isBusy = view.sequences.length > 0;
            const events = this.view.take(views);
            if (this.controls.take(events, isBusy, view.steps)) {
                this.view.bringIntoSight();
            }
            this.most = Math.max(this.most, ...views.map(({ owners }) => owners.filter((owner) => owner > 0).length));
            const summary = view.wrong_reads ? readWrongly(view.wrong_reads, isBusy, this.happened) : this.setup.summary?.(view, this.most, this.starts);
            // Not read aloud step by step, which nobody could follow.
            this.summary.setAttribute("aria-busy", isBusy && this.controls.state === "playing");
            if (summary !== undefined) {
                this.summary.textContent = summary;
            }
            const [misread] = Object.keys(view.wrong_reads?.pages ?? {});
            if (misread && isBusy && this.setup.view.lists) {
                this.drafts.replaceChildren(...overwritten(view, Number(misread)));
                this.happened = WHY_UNNOTICED;
            }
            this.drafts.append(...views.filter(({ draft }) => draft).map(({ draft }) => listedDraft(draft)));
            while (this.drafts.children.length > MAX_DRAFTS) {
                this.drafts.firstChild.remove();
            }
            if (!isBusy) {
                this.to("done");
            }
        }

        /** Ends the worker. What the place had before comes back. */
        end(message, isBad) {
            this.worker?.terminate();
            this.worker = undefined;
            this.attempt = undefined;
            this.cancelling.clear();
            this.place.classList.remove("pbp-live-on");
            this.view = undefined;
            this.root.remove();
            this.summary.textContent = "";
            this.drafts.replaceChildren();
            this.to("off");
            this.say(message, isBad);
        }

        /** Switches a mistake on, and off again; it runs at once, in a new pool. */
        breakButton(name, label) {
            const made = element("button", "break", label);
            made.type = "button";
            made.setAttribute("aria-pressed", "false");
            made.addEventListener("click", () => {
                const isOn = this.settings.mistake !== name;
                this.settings.mistake = isOn ? name : undefined;
                made.parentNode.querySelectorAll(".break").forEach((other) => other.setAttribute("aria-pressed", isOn && other === made));
                if (this.view) {
                    this.begin(true);
                    this.controls.play();
                } else if (this.controls.state !== "loading") {
                    this.controls.press();
                }
            });
            return made;
        }

        /** A label with what a reader can change: a slider over some values, a checkbox, or a text field. */
        control({ key, label, values, slots: all }) {
            const change = (value) => {
                if (key in this.settings) {
                    this.settings[key] = value;
                } else {
                    this.starts.forEach((start) => { start[key] = value; });
                }
                if (all) {
                    this.settings.pages = Math.ceil(all / value);
                }
                if (this.view && key !== "prompt") {
                    this.begin(true);
                    if (this.controls.state !== "paused") {
                        this.controls.play();
                    }
                }
            };
            if (values) {
                return slider(label, values, this.settings[key], change);
            }
            const input = element(key === "prompt" ? "textarea" : "input", "");
            if (key === "prompt") {
                input.value = this.starts[0].prompt;
                input.rows = 3;
                input.autocomplete = "off";
                input.addEventListener("input", () => change(input.value));
                return element("label", "wide", label, input);
            }
            Object.assign(input, { type: "checkbox", autocomplete: "off", checked: this.starts[0][key] });
            input.addEventListener("change", () => change(input.checked));
            return element("label", "", input, label);
        }
    }

    /** Shows a page that is read by mistake as what it is, the same page on two lists. The one that it displaces isn't handed out. */
    function giveToBoth({ owners, sequences, wrong_reads }) {
        for (const page of Object.keys(wrong_reads.pages).map(Number)) {
            const at = sequences.find(({ pages }) => pages.includes(page)).pages.indexOf(page);
            for (const { pages } of sequences.filter(({ pages }) => !pages.includes(page))) {
                owners[pages[at]] = 0;
                owners[page] += 1;
                pages[at] = page;
            }
        }
    }

    /** What was read wrongly so far, and why nobody noticed; where a page is on two lists, what `happened` there. */
    function readWrongly({ n, first, instead }, isBusy, happened) {
        if (!first) {
            return "Nothing was read wrongly yet.";
        }
        const right = instead ? ` Without the mistake, ${instead.name} goes on \u201c${instead.text} \u2026\u201d.` : "";
        const count = `${plural(n, "wrong read")} ${isBusy ? "so far" : "in all"}`;
        const why = `${first}, and went on. No error: nothing in a page says whose memory it holds. Every row is read again for each new token: ${count}.`;
        return `${happened ?? why}${right}`;
    }

    /**
     * How two sequences, A and B, got into one page: its first slot, and then both lists, with the words whose rows are in their
     * pages. Where a row of B lies in a slot of A, the word that belongs there is struck through.
     */
    function overwritten({ sequences, wrong_reads: { before, slots } }, page) {
        const word = (owner, ...words) => element("b", owner, ...words);
        const [[own, found]] = slots;
        const first = ["A writes ", word("of-a", own), " \u2192 B writes over it ", word("of-b", found), " \u2192 A reads ", word("of-b", found)];
        const read = slots.map(([own, found]) => word("of-b", ...(own === found ? [] : [element("del", "", own), " "]), found));
        const list = (name, { pages }, owner, ...shared) => {
            const begins = word(owner, `\u2039start\u203a ${before}`);
            return element("li", "", `${name}\u2019s list: page ${pages[pages.indexOf(page) - 1]} `, begins, ` page ${page} `, ...shared);
        };
        const [a, b] = sequences;
        return [element("li", "", `Page ${page}, first slot: `, ...first), list("A", a, "of-a", ...read), list("B", b, "of-b", "too")];
    }

    /** A step of speculative decoding: the draft tokens, accepted or not, and the target's own. */
    function listedDraft({ drafted, new: tokens }) {
        const item = element("li", "");
        drafted.forEach((token, at) => {
            const isAccepted = at < tokens.length - 1;
            const mark = element(isAccepted ? "ins" : "del", "", token);
            mark.title = isAccepted ? "accepted" : "rejected";
            item.append(mark);
        });
        item.append(element("b", "", tokens.at(-1)));
        return item;
    }

    // The page for printing has all chapters, and paper has no buttons.
    const places = location.pathname.endsWith("/print.html") ? [] : document.querySelectorAll("main .pbp-live");
    for (const place of places) {
        if (location.protocol === "file:") {
            const why = "The engine runs here when the book comes from a server, because browsers load no code for a page that is opened as a file. In the book\u2019s folder, python3 -m http.server is enough.";
            place.prepend(element("p", "pbp-live-says", why));
        } else {
            new Live(place, place.dataset.live);
        }
    }
})();

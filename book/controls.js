// The buttons and the slider by which a reader paces an engine, and the line about what happened in it: above each place where the engine
// runs in the book, and in the server's page, which includes this file.
"use strict";
{
    const PACES = [1, 2, 3, 4, 6, 8, 12, 15, 20, 30, 60, Infinity];
    const NAMES = { off: "Run", loading: "Stop", playing: "Pause", seeking: "Pause", paused: "Continue", done: "Run again" };

    /** Events of one step that are told. */
    const MAX_TEXTS = 3;

    /** An element with these children. A string becomes text. */
    function element(name, className, ...children) {
        const made = document.createElement(name);
        made.className = className;
        made.append(...children);
        return made;
    }

    /** Changes only what differs: a page that doesn't change costs nothing, and the same words aren't read aloud twice. */
    function write(target, text) {
        if (target.textContent !== text) {
            target.textContent = text;
        }
    }

    function button(name, onClick) {
        const made = element("button", "", name);
        made.type = "button";
        made.addEventListener("click", onClick);
        return made;
    }

    /** A label with a slider over some values. `change(value)`: called once the reader has chosen. */
    function slider(label, values, value, change) {
        const input = element("input", "");
        const shown = element("output", "");
        Object.assign(input, { type: "range", autocomplete: "off", min: 0, max: values.length - 1, step: 1, value: values.indexOf(value) });
        const now = () => values[Number(input.value)];
        const describe = () => {
            shown.textContent = now() === Infinity ? "full speed" : now();
            input.setAttribute("aria-valuetext", shown.textContent);
        };
        describe();
        input.addEventListener("input", describe);
        input.addEventListener("change", () => change(now()));
        return element("label", "", label, input, shown);
    }

    class PaceControls {
        /**
         * `state`: "off" where an engine has to be started first, else "playing". `engine`: what obeys. `pace(n)`: n steps a second from now
         * on, 0 for a pause; `step()`: one step and then a pause; `begin(state, then)`: the button was pressed where it neither plays nor pauses.
         */
        constructor(state, stepsPerSecond, engine) {
            this.engine = engine;
            this.stepsPerSecond = stepsPerSecond;
            this.steps = 0;
            this.go = button("", () => this.press());
            this.once = button("One step", () => this.ifPaused(() => engine.step()));
            this.next = button("Next event", () => (this.state === "playing" ? this.seek() : this.ifPaused(() => this.seek())));
            const pace = slider("Steps a second", PACES, stepsPerSecond, (value) => {
                this.stepsPerSecond = value;
                if (this.state === "playing") {
                    engine.pace(value);
                }
            });
            this.line = element("p", "event");
            this.line.setAttribute("role", "status");
            this.root = element("div", "pace", this.go, this.once, this.next, pace, this.line);
            this.to(state);
        }

        to(state) {
            this.state = state;
            this.go.textContent = NAMES[state];
            // Not `disabled`, which would take the focus away.
            this.once.setAttribute("aria-disabled", !["off", "paused"].includes(state));
            this.next.setAttribute("aria-disabled", !["off", "paused", "playing"].includes(state));
        }

        press() {
            if (this.state === "playing" || this.state === "seeking") {
                this.to("paused");
                this.engine.pace(0);
            } else if (this.state === "paused") {
                this.play();
            } else {
                this.engine.begin(this.state, () => this.play());
            }
        }

        ifPaused(then) {
            if (this.state === "paused") {
                then();
            } else if (this.state === "off") {
                this.engine.begin("off", () => {
                    this.to("paused");
                    then();
                });
            }
        }

        play() {
            this.to("playing");
            this.engine.pace(this.stepsPerSecond);
        }

        /** Takes steps until something happens. */
        seek() {
            this.to("seeking");
            this.engine.step();
        }

        /**
         * What happened by now, whether there is anything left to do, and how many steps that took: a view that came without a step asks for
         * no other one. Returns whether it stands still at an event.
         */
        take(events, isBusy, steps) {
            const hasStepped = steps !== this.steps;
            this.steps = steps;
            if (events.length > 0) {
                const { step } = events.at(-1);
                const texts = events.filter((event) => event.step === step).map(({ text }) => `${text}.`);
                texts.splice(MAX_TEXTS, texts.length, ...(texts.length > MAX_TEXTS ? ["And more."] : []));
                this.line.replaceChildren(element("b", "", `Step ${step}.`), ` ${texts.join(" ")}`);
            }
            if (this.state === "seeking" && (events.length > 0 || !isBusy)) {
                this.to("paused");
            } else if (this.state === "seeking" && hasStepped) {
                clearTimeout(this.timer);
                this.timer = setTimeout(() => this.state === "seeking" && this.engine.step(), 1000 / this.stepsPerSecond);
            }
            return events.length > 0 && this.state === "paused";
        }
    }

    /** "1 token", "2,000 tokens". */
    const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

    globalThis.Controls = { PaceControls, element, plural, slider, write };
}

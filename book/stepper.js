// Steps through the figures, and lights up in a figure what the words name.
//
// A figure is complete without this script: its picture is the last frame, and the list below it tells every step. Here
// each gets a slider and two buttons, built from the elements of both that have a `data-step`. Whatever has a `data-key`
// is lit, wherever the page shows it, while the pointer or the focus is on one of them.
(() => {
    "use strict";

    const SVG = "http://www.w3.org/2000/svg";
    const WIDTH = 360;
    const PADDING = 5;
    /** Parts of a step that are further apart than this are marked one by one. */
    const APART = 14;

    function enhance(figure) {
        const groups = [...figure.querySelectorAll("svg g[data-step]")];
        const items = [...figure.querySelectorAll("li[data-step]")];
        const last = items.length - 1;
        if (last < 1 || groups.length === 0) {
            return;
        }
        const isChart = groups.every((group) => [...group.children].every((part) => part.nodeName === "circle"));
        figure.classList.toggle("pbp-chart", isChart);

        const stepper = document.createElement("div");
        stepper.className = "pbp-stepper";
        stepper.innerHTML = `
            <div class="pbp-controls" role="group" aria-label="Steps of the figure">
                <button type="button" aria-label="Previous step"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M10 3 5 8l5 5"/></svg></button>
                <input type="range" min="1" max="${last + 1}" step="1" value="${last + 1}" aria-label="Step">
                <button type="button" aria-label="Next step"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="m6 3 5 5-5 5"/></svg></button>
            </div>
            <div class="pbp-says"><p aria-live="polite" aria-atomic="true"></p></div>`;
        const [previous, next] = stepper.querySelectorAll("button");
        const range = stepper.querySelector("input");
        const words = stepper.querySelector("p");

        function tell(paragraph, step) {
            const place = document.createElement("b");
            place.textContent = `${step + 1} of ${last + 1}`;
            paragraph.replaceChildren(place, " ", ...items[step].cloneNode(true).childNodes);
        }

        let step = last;
        // A figure whose colours say what a step changes needs no bands.
        let bands = isChart || figure.querySelector("svg .pbp-no-bands") ? [] : undefined;
        function show(to) {
            step = Math.min(Math.max(to, 0), last);
            range.value = step + 1;
            range.setAttribute("aria-valuetext", `${step + 1} of ${last + 1}`);
            previous.setAttribute("aria-disabled", step === 0);
            next.setAttribute("aria-disabled", step === last);
            // A figure in a closed fold has no size before it is opened.
            bands ??= mark(groups);
            for (const part of [...groups, ...items, ...(bands ?? [])]) {
                part.classList.toggle("now", Number(part.dataset.step) === step);
                part.classList.toggle("later", Number(part.dataset.step) > step);
            }
            tell(words, step);
        }

        previous.addEventListener("click", () => show(step - 1));
        next.addEventListener("click", () => show(step + 1));
        range.addEventListener("input", () => show(range.value - 1));
        stepper.addEventListener("keydown", (event) => {
            const to = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: last }[event.key];
            if (to === undefined || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) {
                return;
            }
            // Elsewhere the arrows turn mdBook's pages.
            event.stopPropagation();
            event.preventDefault();
            show(to);
        });
        // Elsewhere a quick swipe opens mdBook's sidebar.
        stepper.addEventListener("touchstart", (event) => event.stopPropagation(), { passive: true });

        // The longest text holds its place, so that the page below does not jump.
        const lengths = items.map((item) => item.textContent.length);
        const longest = words.cloneNode();
        longest.removeAttribute("aria-live");
        longest.removeAttribute("aria-atomic");
        longest.setAttribute("aria-hidden", "true");
        tell(longest, lengths.indexOf(Math.max(...lengths)));
        words.after(longest);

        figure.querySelector("svg").after(stepper);
        // A figure of the reader's own code opens where it departs from the reference's.
        show(Number(figure.dataset.opens ?? last));
    }

    /** Lays a band behind the parts of each step, but for those that overlap with another step's. */
    function mark(groups) {
        const parts = groups.flatMap((group) => clusters(group).map((box) => ({ group, ...box })));
        if (parts.some((part) => part.bottom === part.top)) {
            return undefined;
        }
        const others = (part) => parts.filter((other) => other.group !== part.group);
        const beside = (a, b) => a.top < b.bottom && b.top < a.bottom;
        const across = (a, b) => a.left < b.right && b.left < a.right;
        const apart = (part) => !others(part).some((other) => beside(part, other) && across(part, other));
        return parts.filter(apart).map((part) => {
            const shares = others(part).some((other) => beside(part, other));
            const [left, right] = shares ? [part.left, part.right] : [0, WIDTH];
            const above = others(part).map((other) => part.top - other.bottom).filter((gap) => gap >= 0);
            const below = others(part).map((other) => other.top - part.bottom).filter((gap) => gap >= 0);
            const top = part.top - Math.min(PADDING, ...above.map((gap) => gap / 2));
            const bottom = part.bottom + Math.min(PADDING, ...below.map((gap) => gap / 2));
            const band = document.createElementNS(SVG, "rect");
            band.setAttribute("class", "pbp-band");
            band.setAttribute("x", left - PADDING);
            band.setAttribute("y", top);
            band.setAttribute("width", right - left + 2 * PADDING);
            band.setAttribute("height", bottom - top);
            band.setAttribute("rx", 4);
            band.dataset.step = part.group.dataset.step;
            groups[0].before(band);
            return band;
        });
    }

    /** The boxes of a group's elements, those that are close below each other joined. */
    function clusters(group) {
        const boxes = [...group.children].map((part) => {
            const { x, y, width, height } = part.getBBox();
            return { left: x, right: x + width, top: y, bottom: y + height };
        });
        const joined = [];
        for (const box of boxes.sort((a, b) => a.top - b.top)) {
            const above = joined.at(-1);
            if (above && box.top - above.bottom < APART) {
                above.left = Math.min(above.left, box.left);
                above.right = Math.max(above.right, box.right);
                above.bottom = Math.max(above.bottom, box.bottom);
            } else {
                joined.push(box);
            }
        }
        return joined;
    }

    /** Gives words that name a page or a token of a figure its key: `t3` as code, and "page 12". */
    function name(main) {
        const keys = new Set([...main.querySelectorAll("figure [data-key]")].map((part) => part.dataset.key));
        if (keys.size === 0) {
            return;
        }
        for (const code of main.querySelectorAll(":not(pre) > code")) {
            if (keys.has(code.textContent)) {
                code.dataset.key = code.textContent;
            }
        }
        const prefixes = { page: "page-", token: "t", position: "t" };
        const elsewhere = "pre, code, a, svg, script, h1, h2, h3, h4, summary, [data-key]";
        const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
        const found = [];
        for (let text = walker.nextNode(); text; text = walker.nextNode()) {
            for (const match of text.data.matchAll(/\b(page|token|position) (\d+)\b/gi)) {
                const key = prefixes[match[1].toLowerCase()] + match[2];
                if (keys.has(key) && !text.parentElement.closest(elsewhere)) {
                    found.push({ text, match, key });
                }
            }
        }
        // From the end, so that what comes before stays where it was.
        for (const { text, match, key } of found.reverse()) {
            const range = document.createRange();
            range.setStart(text, match.index);
            range.setEnd(text, match.index + match[0].length);
            const span = document.createElement("span");
            span.dataset.key = key;
            range.surroundContents(span);
        }
    }

    const lit = new Set();
    let key;
    function light(target) {
        const wanted = target?.closest?.("main [data-key]")?.dataset.key;
        if (wanted === key) {
            return;
        }
        key = wanted;
        lit.forEach((part) => part.classList.remove("lit"));
        lit.clear();
        if (key) {
            // Some cells are drawn lit; they stay so.
            for (const part of document.querySelectorAll(`main [data-key="${CSS.escape(key)}"]:not(.lit)`)) {
                part.classList.add("lit");
                lit.add(part);
            }
        }
    }

    const main = document.querySelector("main");
    const figures = main ? main.querySelectorAll("figure[data-figure]") : [];
    if (figures.length === 0) {
        return;
    }
    // Written by hand, a key can be reached with the keyboard. On the print page one name stands for many things.
    main.querySelectorAll("span[data-key]").forEach((span) => { span.tabIndex = 0; });
    if (main.querySelectorAll("h1").length <= 1) {
        name(main);
    }
    figures.forEach(enhance);
    document.addEventListener("pointerover", (event) => light(event.target));
    document.documentElement.addEventListener("pointerleave", () => light());
    document.addEventListener("focusin", (event) => light(event.target));
    document.addEventListener("focusout", () => light());
})();

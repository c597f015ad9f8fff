// A link past the bars; names the page in the bar above it, and the pages before and after it at its foot; takes the prompt out of commands, so
// that only the command is marked and copied; puts what a narrow window wraps of a line of code under that line. Without this script the
// bar has the book's title, and the foot two arrows.
(() => {
    "use strict";

    // Before all that mdBook has around a page, and past the title, which is a link.
    const start = document.querySelector("main > h1 + *");
    if (start) {
        start.id ||= "pbp-start";
        start.tabIndex = -1;
        const skip = document.createElement("a");
        Object.assign(skip, { className: "pbp-skip", href: `#${start.id}`, textContent: "Skip to the page" });
        document.body.prepend(skip);
    }

    const title = document.querySelector("main h1");
    const bar = document.querySelector(".menu-title");
    if (title && bar) {
        bar.textContent = title.textContent;
    }

    const entries = [...document.querySelectorAll("#mdbook-sidebar .chapter-link-wrapper > a[href]")];
    for (const link of document.querySelectorAll(".mobile-nav-chapters")) {
        const entry = entries.find((other) => other.href === link.href);
        if (entry) {
            const way = document.createElement("small");
            way.textContent = link.classList.contains("next") ? "Next" : "Previous";
            link.replaceChildren(way, " ", entry.firstChild.textContent);
            link.removeAttribute("aria-label");
            link.removeAttribute("title");
        }
    }

    // What highlight.js takes for words of a shell is left plain.
    for (const code of document.querySelectorAll("code.language-console")) {
        const lines = code.textContent.replace(/\n$/, "").split("\n");
        code.replaceChildren(
            ...lines.flatMap((line, at) => {
                const command = line.replace(/^\$ /, "");
                const prompt = document.createElement("span");
                prompt.className = "pbp-prompt";
                return [at > 0 ? "\n" : "", command === line ? "" : prompt, command];
            }),
        );
    }

    // The first `n` characters of an element, taken out of it together with the marks around them.
    const take = (element, n) => {
        const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
        let text = texts.nextNode();
        for (; text && text.length < n; text = texts.nextNode()) {
            n -= text.length;
        }
        const range = document.createRange();
        range.setStart(element, 0);
        range.setEnd(text ?? element, text ? n : element.childNodes.length);
        return range.extractContents();
    };

    // A line is a box of its own: what a narrow window wraps hangs four columns in, under the text of a comment.
    for (const code of document.querySelectorAll("pre > code:is(.language-rust, .language-text)")) {
        const lines = code.textContent.trimEnd().split("\n").flatMap((text) => {
            const line = document.createElement("span");
            line.className = "pbp-line";
            line.style.setProperty("--pbp-hang", `${text.search(/\S|$/) + 4}ch`);
            line.append(take(code, text.length));
            take(code, 1);
            return text === "" ? ["\n"] : [line, "\n"];
        });
        code.replaceChildren(...lines);
    }
})();

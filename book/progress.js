// Remembers which pages have been read to their end, and ticks them in the sidebar. The list stays in this browser; where
// it cannot be kept there are no ticks.
(() => {
    "use strict";

    const KEY = "page-by-page.read";
    const sidebar = document.querySelector("#mdbook-sidebar .sidebar-scrollbox");
    const root = new URL(typeof path_to_root === "string" ? path_to_root || "." : ".", document.baseURI);
    const links = [...(sidebar?.querySelectorAll("li.chapter-item > .chapter-link-wrapper > a[href]") ?? [])].filter(
        (link) => link.pathname.endsWith(".html"),
    );
    const nameOf = (link) => link.href.split("#")[0].replace(root.href, "");

    function load() {
        const list = JSON.parse(localStorage.getItem(KEY) ?? "[]");
        return new Set(Array.isArray(list) ? list : []);
    }

    let footer;
    function draw(read) {
        let count = 0;
        for (const link of links) {
            link.querySelector(".pbp-read")?.remove();
            if (read.has(nameOf(link))) {
                count += 1;
                link.insertAdjacentHTML(
                    "beforeend",
                    '<span class="pbp-read"><span aria-hidden="true">✓</span><span class="pbp-aloud">, read</span></span>',
                );
            }
        }
        footer?.remove();
        if (count > 0) {
            footer = document.createElement("div");
            footer.className = "pbp-progress";
            footer.innerHTML = `<span>${count} of ${links.length} pages read</span>
                <button type="button" aria-label="Forget which pages I have read">Forget</button>`;
            footer.querySelector("button").addEventListener("click", () => {
                keep(new Set());
                sidebar.querySelector("a.active, a")?.focus();
            });
            sidebar.append(footer);
        }
    }

    function keep(read) {
        try {
            if (read.size > 0) {
                localStorage.setItem(KEY, JSON.stringify([...read]));
            } else {
                localStorage.removeItem(KEY);
            }
        } catch {
            return;
        }
        draw(read);
    }

    function reread() {
        try {
            const read = load();
            draw(read);
            return read;
        } catch {
            return undefined;
        }
    }

    if (links.length === 0 || !reread()) {
        return;
    }
    // Another tab may have read on.
    window.addEventListener("storage", (event) => event.key === KEY && reread());

    const here = links.find((link) => link.classList.contains("active"));
    const main = document.querySelector("main");
    if (here && main) {
        const end = document.createElement("div");
        main.append(end);
        const observer = new IntersectionObserver((entries) => {
            if (entries.some((entry) => entry.isIntersecting)) {
                observer.disconnect();
                const read = reread() ?? new Set();
                keep(read.add(nameOf(here)));
            }
        });
        observer.observe(end);
    }
})();

// Opens to the keyboard what mdBook leaves to the pointer: the button of the sidebar, and code and tables that are wider than the
// page. These also show at their edge that there is more (`.pbp-more`).
(() => {
    "use strict";

    const toggle = document.getElementById("mdbook-sidebar-toggle");
    if (toggle) {
        toggle.tabIndex = 0;
        toggle.setAttribute("role", "button");
        toggle.addEventListener("keydown", (event) => {
            if (event.key === "Enter" || event.key === " ") {
                event.preventDefault();
                toggle.click();
            }
        });
    }

    const fade = (box) => box.classList.toggle("pbp-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    const sizes = new ResizeObserver((entries) => {
        for (const { target } of entries) {
            if (target.scrollWidth > target.clientWidth) {
                target.tabIndex = 0;
            } else {
                target.removeAttribute("tabindex");
            }
            fade(target);
        }
    });
    for (const box of document.querySelectorAll("main :is(pre > code, .table-wrapper)")) {
        sizes.observe(box);
        box.addEventListener("scroll", () => fade(box), { passive: true });
        box.addEventListener("keydown", (event) => {
            // Here the arrows scroll; elsewhere they turn mdBook's pages.
            if (event.target === box && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
                event.stopPropagation();
            }
        });
    }
})();

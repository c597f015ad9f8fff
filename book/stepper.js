// Steps through the figures.
//
// A figure is complete without this script: two or three of its frames stand below each other, each with its sentence. Here all
// frames lie on top of each other, one is seen, and a slider with two buttons above them says which.
(() => {
    "use strict";

    function enhance(figure) {
        const frames = [...figure.querySelectorAll(".pbp-frame")];
        const last = frames.length - 1;
        if (last < 1) {
            return;
        }
        figure.classList.add("pbp-stepped");

        const stepper = document.createElement("div");
        stepper.className = "pbp-stepper";
        stepper.innerHTML = `
            <div class="pbp-controls" role="group" aria-label="Steps of the figure">
                <button type="button" aria-label="Previous step"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M10 3 5 8l5 5"/></svg></button>
                <input type="range" min="1" max="${last + 1}" step="1" value="1" aria-label="Step">
                <button type="button" aria-label="Next step"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="m6 3 5 5-5 5"/></svg></button>
            </div>
            <p class="pbp-aloud" aria-live="polite" aria-atomic="true"></p>`;
        const [previous, next] = stepper.querySelectorAll("button");
        const range = stepper.querySelector("input");
        const aloud = stepper.querySelector("p");

        let step;
        function show(to) {
            const before = step;
            step = Math.min(Math.max(to, 0), last);
            range.value = step + 1;
            range.setAttribute("aria-valuetext", `${step + 1} of ${last + 1}`);
            previous.setAttribute("aria-disabled", step === 0);
            next.setAttribute("aria-disabled", step === last);
            frames.forEach((frame, at) => frame.classList.toggle("now", at === step));
            // Nothing is said when the page opens.
            if (before !== undefined && before !== step) {
                aloud.textContent = frames[step].querySelector("p").textContent;
            }
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

        figure.prepend(stepper);
        show(Number(figure.dataset.opens));
    }

    document.querySelectorAll("main figure[data-figure]").forEach(enhance);
})();

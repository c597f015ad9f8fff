// A browser that can reach nothing but this computer, and pages that note what goes wrong in them.

import { execFileSync } from "node:child_process";

import { chromium } from "playwright-core";

const NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1";

export const WIDE = 1440;
export const NARROW = 360;

export async function start() {
  const asked = process.env.CHROMIUM;
  const executablePath = asked || execFileSync("sh", ["-c", "command -v chromium || command -v google-chrome"]).toString().trim();
  // Chromium's own sandbox does not start for root.
  const args = process.getuid?.() === 0 ? ["--no-sandbox", NO_NETWORK] : [NO_NETWORK];
  return chromium.launch({ executablePath, args });
}

/**
 * Opens a window of its own, and closes it when `use(tab, faults)` is done. Returns a line for everything that its pages should not do,
 * and for what `use` finds.
 */
export async function inWindow(browser, { theme = "light", width = WIDE, prepare, ...options }, use) {
  const faults = [];
  const context = await browser.newContext({
    viewport: { width, height: width === NARROW ? 740 : 900 },
    reducedMotion: "reduce",
    ...options,
  });
  context.setDefaultTimeout(150_000);
  try {
    await context.addInitScript((name) => {
      try {
        localStorage.setItem("mdbook-theme", name);
      } catch {
        // Blocked on purpose, or a page without storage.
      }
    }, theme);
    if (prepare) {
      await context.addInitScript(prepare);
    }
    const page = await context.newPage();
    page.on("pageerror", (error) => faults.push(`script: ${error.message}`));
    page.on("console", (message) => message.type() === "error" && faults.push(`console: ${message.text()}`));
    page.on("response", (answer) => answer.status() >= 400 && faults.push(`${answer.status()}: ${answer.url()}`));
    page.on("request", (request) => {
      const { protocol, hostname } = new URL(request.url());
      if (!["data:", "blob:", "file:"].includes(protocol) && hostname !== "127.0.0.1") {
        faults.push(`leaves the computer: ${request.url()}`);
      }
    });
    const found = (await use(page, faults)) ?? [];
    return [...faults, ...found];
  } finally {
    await context.close();
  }
}

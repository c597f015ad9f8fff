// Serves the rendered book on this computer, on a free port.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, sep } from "node:path";

/** Of the files that a browser takes for nothing else. */
const TYPES = { ".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml" };

/**
 * Returns the address, with a slash at its end, and how to stop. Above `base` nothing is found, and what is missing is answered
 * with the book's own page for that, as hosts of such folders do.
 */
export async function serve(folder, base = "/") {
  const server = createServer(async (request, response) => {
    const asked = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const path = asked.startsWith(base) ? asked.slice(base.length) || "index.html" : "..";
    const file = normalize(join(folder, path));
    const found = file.startsWith(folder + sep) && (await stat(file).catch(() => null))?.isFile();
    const shown = found ? file : join(folder, "404.html");
    response.writeHead(found ? 200 : 404, { "content-type": TYPES[extname(shown)] ?? "application/octet-stream" });
    createReadStream(shown).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const stop = () => {
    server.closeAllConnections();
    server.close();
  };
  return { address: `http://127.0.0.1:${server.address().port}${base}`, stop };
}

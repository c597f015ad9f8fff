// Serves the rendered book on this computer, on a free port.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, sep } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".png": "image/png",
  ".woff2": "font/woff2",
  ".txt": "text/plain; charset=utf-8",
};

/**
 * Returns the address, with a slash at its end, and how to stop. With a `path` such as `/book/` nothing is found above it, and
 * what is missing is answered with the book's own page for that, as hosts of such folders do.
 */
export async function serve(folder, { path: base } = {}) {
  const server = createServer(async (request, response) => {
    const asked = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const path = asked.startsWith(base ?? "/") ? asked.slice((base ?? "/").length) : "..";
    const file = normalize(join(folder, path === "" || path.endsWith("/") ? `${path}index.html` : path));
    const found = file.startsWith(folder + sep) && (await stat(file).catch(() => null));
    if (!found || !found.isFile()) {
      response.writeHead(404, { "content-type": TYPES[".html"] });
      if (base) createReadStream(join(folder, "404.html")).pipe(response);
      else response.end();
      return;
    }
    response.writeHead(200, {
      "content-type": TYPES[extname(file)] ?? "application/octet-stream",
      "content-length": found.size,
      "cache-control": "max-age=600",
    });
    createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    address: `http://127.0.0.1:${server.address().port}${base ?? "/"}`,
    stop: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

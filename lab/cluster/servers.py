"""Servers that a comparison starts. One runs at a time, or some together; all are stopped again, also on Ctrl-C."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from machine import PROGRAM, ROOT, TARGET, answer_of

LOGS = TARGET / "cluster"

PAGE_SIZE, PAGES = 32, 64  # vLLM's attention on a processor reads blocks of a multiple of 32
START_LIMIT, STOP_LIMIT = 600, 30  # seconds: to start, and to end before it is killed


class Running:
    """A server in a process group of its own, until the end of a `with`."""

    def __init__(self, name: str, command: list, environment: dict | None = None):
        self.name, self.log = name, LOGS / f"{name}.log"
        LOGS.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w", encoding="utf-8") as log:
            print("$", *command, file=log, flush=True)
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stderr=log, cwd=ROOT, start_new_session=True,
                stdout=log if environment else subprocess.PIPE, env=os.environ | (environment or {}), text=True,
            )

    def wait_for(self, address: str):
        """Until it says that it is well."""
        end = time.monotonic() + START_LIMIT
        while time.monotonic() < end:
            if (status := self.process.poll()) is not None:
                raise RuntimeError(f"{self.name} ended with status {status}:\n{self.last_words()}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} was not ready after {START_LIMIT} s:\n{self.last_words()}")

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-12:]) + f"\n    all of it: {self.log}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Asks it to end, and ends it and what it has started, if it does not."""
        try:
            self.signal(signal.SIGTERM)
            self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@contextlib.contextmanager
def our_server(model: Path, name: str, *options):
    """Our server with a model; its address."""
    options = options or ["--page-size", PAGE_SIZE, "--pages", PAGES]
    command = [PROGRAM, "serve", "--model", model, "--port", "0", *options]
    with Running(name, command) as running:
        # The first line of its output is its address. It comes, or the output ends.
        address = running.process.stdout.readline().strip()
        if not address:
            running.process.wait(STOP_LIMIT)
            raise RuntimeError(f"our server did not start:\n{running.last_words()}")
        running.wait_for(address)
        yield address


@contextlib.contextmanager
def vllm_server(python: Path, model: Path, name: str, space: int, options: list, processes: list[list[int]] | None = None):
    """vLLM's server with a model; its address and its log. `space`: GiB for its pool; `processes`: the cores of each."""
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", model.name,
               "--enable-prefix-caching", "--host", "127.0.0.1", "--port", port, *options]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(space),
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, of_one)) for of_one in processes or [cores()]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    start = time.monotonic()
    with Running(f"vllm-{name}", command, environment) as running:
        running.wait_for(address := f"http://127.0.0.1:{port}")
        say(f"    ready after {time.monotonic() - start:.0f} s")
        yield address, running.log


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def versions_of(python: Path, *packages: str) -> list[str]:
    """Asked of the packages' records, which takes no import."""
    script = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"
    return answer_of(python, "-c", script, *packages).split()


def say(text: str):
    print(text, file=sys.stderr, flush=True)

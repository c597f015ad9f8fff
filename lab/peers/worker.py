#!/usr/bin/env python3
"""One engine, one model, asked by compare.py through standard input: a JSON object a line, an answer a line.

Each task answers {"tokens": n, "seconds": s}; "choices" answers the likeliest next token of some sequences, so that
compare.py can see that all engines have the same weights. All engines read the same tokens, `tokens_of`, and a round
never repeats the tokens of another, so that no prefix cache can help a prefill.
"""

import importlib
import json
import os
import sys


def tokens_of(count: int, vocabulary: int, round: int, sequence: int = 0) -> list[int]:
    """Tokens that say nothing. Only their number matters for the time."""
    return [(i * 7919 + round * 104729 + sequence * 1299709) % vocabulary for i in range(count)]


def main():
    engine, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # Engines print; answers go out by another door.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    module = importlib.import_module(f"engines.{engine}")
    peer = module.Engine(folder, config, threads)
    answer({"version": peer.version, "arithmetic": peer.arithmetic})
    for line in sys.stdin:
        task = json.loads(line)
        kind = task.pop("kind")
        if kind == "choices":
            answer({"choices": [peer.choice(tokens) for tokens in task["sequences"]]})
        else:
            tokens, seconds = getattr(peer, kind)(**task)
            answer({"tokens": tokens, "seconds": seconds})


if __name__ == "__main__":
    main()

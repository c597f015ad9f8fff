#!/usr/bin/env python3
"""Prints how far logits in 16 bits are from transformers' in 32, for this engine and for transformers itself.

    python3 lab/peers/closeness.py [FOLDER]      the bundled model by default; needs what lab/setup transformers installs

The tokens are those of lab/golden/alice.txt. A position's spread is the standard deviation of its 32-bit logits.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from machine import PROGRAM, ROOT, answer_of, python_of


def main():
    python = python_of("transformers")
    if Path(sys.prefix) != python.parent.parent:
        sys.exit(subprocess.run([python, __file__, *sys.argv[1:]]).returncode)
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "assets/storyteller"
    text = (ROOT / "lab/golden/alice.txt").read_text()
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    tokens = tokens[: json.loads((folder / "config.json").read_text())["max_position_embeddings"]]

    def theirs(dtype):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        with torch.inference_mode():
            return model(torch.tensor([tokens])).logits[0].double()

    def ours(dtype):
        command = [PROGRAM, "logits", "--model", folder, "--matmul-dtype", dtype, "--all", "--tokens", ",".join(map(str, tokens))]
        return torch.tensor(json.loads(answer_of(*command))["logits"], dtype=torch.float64)

    right = theirs(torch.float32)
    print(f"{folder.name}, {len(tokens)} tokens; differences from transformers in float32, of a position's spread")
    others = {"ours, f32": ours("f32"), "ours, products in bf16": ours("bf16"), "transformers, bfloat16": theirs(torch.bfloat16)}
    for name, logits in others.items():
        off = ((logits - right) / right.std(dim=1, keepdim=True)).abs()
        same = (logits.argmax(1) == right.argmax(1)).sum().item()
        print(f"{name:24} mean {off.mean():.6f}, largest {off.max():.6f}; {same} of {len(tokens)} likeliest tokens the same")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains the bundled pair of models, storyteller and storyteller-draft, from a folder of text.

README.md has the recipe, the reasons and measured figures.
"""

import argparse
import json
import math
import shutil
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from corpus import END_OF_TEXT, InputError, encode_stream, load_tokenizer, read_corpus, train_tokenizer
from distill import divergence, load_model, report_agreement, write_texts

BATCH = 6  # windows a step
WARM_UP_STEPS = 50
CONSTANT_UNTIL = 0.4  # of the budget; then the learning rates fall in a straight line
FINAL_RATE = 0.02  # of the peak, at the end
WRITTEN = 1536  # texts that a teacher draws first, and as many again that it writes greedily
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VALIDATE_EVERY = 4  # each 4th window of the validation stream is enough for two digits


@dataclass
class Recipe:
    """One model's sizes, and what it is trained with."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int  # tokens in a training window
    muon_rate: float
    adamw_rate: float


RECIPES = {
    "storyteller": Recipe(hidden=192, layers=6, heads=6, kv_heads=2, head_dim=32, ffn=512,
                          context=1024, muon_rate=0.02, adamw_rate=4e-3),
    "storyteller-draft": Recipe(hidden=96, layers=2, heads=3, kv_heads=1, head_dim=32, ffn=256,
                                context=512, muon_rate=0.03, adamw_rate=6e-3),
}


def main():
    args = parse_args()
    names = list(RECIPES) if args.model == "both" else [args.model]
    if args.teacher:
        names = ["storyteller-draft"]
    logging.disable_progress_bar()
    try:
        # Now, not after ninety minutes, we want to know that the models have nowhere to go.
        taken = [args.out / name for name in names if (args.out / name).exists()]
        if taken and not args.force:
            raise InputError(f"{taken[0]}: exists (--force replaces it)")
        args.out.mkdir(parents=True, exist_ok=True)
        teacher = load_model(args.teacher, DEVICE) if args.teacher else None
        tokenizer, train, valid = prepare_text(args.corpus, args.teacher)
        for name in names:
            check_length(train, valid, RECIPES[name].context)
        for name in names:
            make_model(name, tokenizer, train, valid, teacher, args)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


def parse_args():
    parser = argparse.ArgumentParser(
        description="Train the storyteller models from a folder of text.",
        epilog="example: train.py --corpus stories --out models --minutes 90",
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="DIR",
                        help=f"a folder of .txt files, documents separated by {END_OF_TEXT}; "
                             "valid.txt is for validation, else 2 %% of the documents are held out")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="where the models go, each in a folder of its own name")
    parser.add_argument("--model", choices=[*RECIPES, "both"], default="both", help="which to train (default: both)")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, metavar="N", help="train each model for so long")
    budget.add_argument("--steps", type=int, metavar="N", help="or for this many steps")
    parser.add_argument("--teacher", type=Path, metavar="DIR",
                        help="make only the draft, and have it learn what this model would say, with its tokenizer")
    parser.add_argument("--start", type=Path, metavar="DIR",
                        help="go on from this model, with half the learning rates (default: random weights)")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="for the first weights and the choice of windows (default: 0)")
    parser.add_argument("--force", action="store_true", help="replace models that are there already")
    args = parser.parse_args()
    if not 0 < (args.minutes or args.steps or 0) < math.inf:
        parser.error("--minutes and --steps are numbers above zero")
    return args


def prepare_text(corpus: Path, teacher: Path | None) -> tuple[Tokenizer, torch.Tensor, torch.Tensor]:
    """The tokenizer and the two token streams."""
    train_documents, valid_documents = read_corpus(corpus)
    if teacher:
        tokenizer = load_tokenizer(teacher)
    else:
        print("training the tokenizer", flush=True)
        tokenizer = train_tokenizer(train_documents)

    train = encode_stream(tokenizer, train_documents)
    valid = encode_stream(tokenizer, valid_documents)
    characters = sum(map(len, train_documents))
    print(f"training:   {len(train_documents):,} documents, {len(train):,} tokens, "
          f"{characters / len(train):.2f} characters each")
    print(f"validation: {len(valid_documents):,} documents, {len(valid):,} tokens", flush=True)
    return tokenizer, train, valid


def check_length(train: torch.Tensor, valid: torch.Tensor, context: int):
    for what, stream in [("training", train), ("validation", valid)]:
        if len(stream) <= context:
            raise InputError(f"too little text: {len(stream):,} tokens for {what}, {context + 1:,} needed")


def make_model(name: str, tokenizer: Tokenizer, train: torch.Tensor, valid: torch.Tensor,
               teacher: Qwen3ForCausalLM | None, args):
    """Trains one model, writes it, opens what was written and measures that."""
    recipe = RECIPES[name]
    torch.manual_seed(args.seed)
    model = Qwen3ForCausalLM(qwen3_config(recipe, tokenizer.get_vocab_size())).to(DEVICE)
    if args.start:
        go_on_from(args.start, model)
        recipe = replace(recipe, muon_rate=recipe.muon_rate / 2, adamw_rate=recipe.adamw_rate / 2)
    print(f"\n{name}: {model.num_parameters():,} parameters, {DEVICE}, {torch.get_num_threads()} CPU threads")
    print(f"loss on validation before: {validation_loss(model, valid, recipe.context):.3f} nats a token", flush=True)

    streams, loss = [train], loss_of
    if teacher:
        started = time.monotonic()
        rng = torch.Generator().manual_seed(args.seed)
        streams += [write_texts(teacher, train, WRITTEN, greedy, rng) for greedy in (False, True)]
        check_length(streams[1], valid, recipe.context)
        print(f"the teacher wrote {sum(map(len, streams[1:])):,} tokens, "
              f"{(time.monotonic() - started) / 60:.1f} minutes", flush=True)

        def loss(model, inputs, _):
            return divergence(model, teacher, inputs)

    started = time.monotonic()
    steps = fit(model, streams, loss, recipe, args)
    minutes = (time.monotonic() - started) / 60
    print(f"{steps:,} steps, {steps * BATCH * recipe.context / 1e6:.1f} M tokens, {minutes:.1f} minutes")

    folder = args.out / name
    save(model, tokenizer, folder)
    reopened = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE)
    print(f"loss on validation after:  {validation_loss(reopened, valid, recipe.context):.3f} nats a token")
    if teacher:
        report_agreement(reopened, teacher, valid)
    print(f"saved in {folder}", flush=True)


def go_on_from(folder: Path, model: Qwen3ForCausalLM):
    """Copies the weights of a saved model of the same shape."""
    saved = load_model(folder, model.device)
    shapes = [{name: w.shape for name, w in one.named_parameters()} for one in (saved, model)]
    if shapes[0] != shapes[1]:
        raise InputError(f"{folder}: another shape than the model to train (--model says which of the two)")
    model.load_state_dict(saved.state_dict())


def qwen3_config(recipe: Recipe, vocabulary: int) -> Qwen3Config:
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.ffn,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=1024,
        max_window_layers=recipe.layers,  # some loaders refuse a config without it
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    config.architectures = ["Qwen3ForCausalLM"]
    return config


def fit(model: Qwen3ForCausalLM, streams: list[torch.Tensor], loss_of, recipe: Recipe, args) -> int:
    """Trains in place until the steps or the minutes are over, or Ctrl-C; returns the number of steps."""
    model.train()
    optimizers = make_optimizers(model, recipe)
    rng = torch.Generator().manual_seed(args.seed)
    step, recent = 0, deque(maxlen=20)  # the newest losses
    started = time.monotonic()

    def share_done() -> float:
        return step / args.steps if args.steps else (time.monotonic() - started) / (60 * args.minutes)

    try:
        while (spent := share_done()) < 1:
            factor = rate_factor(step, spent)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * factor

            inputs, targets = random_windows(streams, recipe.context, rng)
            loss = loss_of(model, inputs, targets)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            step += 1

            recent.append(loss.item())
            if not math.isfinite(recent[-1]):
                sys.exit(f"error: the loss is {recent[-1]} after {step:,} steps; nothing was saved")
            if int(20 * share_done()) > int(20 * spent):
                loss = sum(recent) / len(recent)
                print(f"  {100 * share_done():3.0f} %  step {step:,}, loss {loss:.2f}", flush=True)
    except KeyboardInterrupt:
        print("\nstopped early: saving what there is", flush=True)
    return step


def make_optimizers(model: Qwen3ForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed_tokens" not in name]
    others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed_tokens" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.muon_rate, momentum=0.95, ns_steps=5, weight_decay=0.01),
        torch.optim.AdamW(others, lr=recipe.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def rate_factor(step: int, spent: float) -> float:
    """The learning rate as a share of its peak: up, level, then down to FINAL_RATE."""
    warm_up = min(1, (step + 1) / WARM_UP_STEPS)
    fallen = max(0, spent - CONSTANT_UNTIL) / (1 - CONSTANT_UNTIL)
    return warm_up * (1 - (1 - FINAL_RATE) * fallen)


def random_windows(streams: list[torch.Tensor], context: int,
                   rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """BATCH windows from anywhere in the streams, as many from each; the targets are the inputs one token on."""
    windows = []
    for stream in streams:
        starts = torch.randint(len(stream) - context, (BATCH // len(streams),), generator=rng)
        windows += [stream[start : start + context + 1] for start in starts]
    windows = torch.stack(windows)
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: Qwen3ForCausalLM, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats a token."""
    device = model.device
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(inputs.to(device), use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), targets.to(device).flatten())


@torch.inference_mode()
def validation_loss(model: Qwen3ForCausalLM, stream: torch.Tensor, context: int) -> float:
    """The mean over windows of the context laid end to end, every VALIDATE_EVERYth of them."""
    model.eval()
    starts = range(0, len(stream) - context, context * VALIDATE_EVERY)
    losses = [
        loss_of(model, stream[None, start : start + context], stream[None, start + 1 : start + context + 1]).item()
        for start in starts
    ]
    return sum(losses) / len(losses)


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path):
    """Writes beside the folder and renames at the end, so that it is whole or not there."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(partial)

    # Loaders older than transformers 5 look for these two at the top level.
    config = json.loads((partial / "config.json").read_text())
    config["torch_dtype"] = config["dtype"]
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    write_json(partial / "config.json", config)
    write_json(partial / "generation_config.json", {
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
    })
    tokenizer.save(str(partial / "tokenizer.json"))
    write_json(partial / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    })
    for file in partial.iterdir():
        file.chmod(0o644)  # safetensors leaves a file that only its owner can read

    if folder.exists():  # --force
        shutil.rmtree(folder)
    partial.rename(folder)


def write_json(path: Path, value: dict):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

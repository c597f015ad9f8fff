#!/usr/bin/env python3
"""Writes the golden files under assets/golden: what an independent Qwen3 computes.

Two kinds of checkpoint are recorded:

  random   tiny, seeded, each with something awkward about its shape, its dtypes or the way its files are written; the
           checkpoint lies beside its golden file
  bundled  the two storytellers of assets/, on the opening of a chapter of Alice

README.md says how the reference is computed, and how to run this.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

ALICE = Path(__file__).resolve().parent / "alice.txt"
ASSETS = ALICE.parents[2] / "assets"
GOLDEN = ASSETS / "golden"

BUNDLED_TOKENS = 200
BUNDLED_IDS = 48

# The largest logit of a position must lead by this share of the largest magnitude,
# so that `argmax` does not hang on the last digits of a sum.
ARGMAX_MARGIN = 5e-5


@dataclass
class Shape:
    """A random checkpoint: its sizes, and how its files are written."""

    name: str
    seed: int
    positions: int
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    dtype: torch.dtype
    norm_dtype: torch.dtype | None = None  # None: as `dtype`
    tied: bool = True
    stored_head: bool = False  # a tied checkpoint that holds lm_head.weight all the same
    bias: bool = False
    eps: float = 1e-6
    theta: float = 1e6
    max_positions: int = 128
    shards: int = 1
    config_style: int = 5  # the major version of transformers whose config.json we write
    eos: int | list[int] = 0
    generation: dict = field(default_factory=dict)  # generation_config.json, if any


SHAPES = [
    # Six query heads on two: 3 to 1. The attention is twice as wide as the model.
    Shape("bf16-gqa3", 1, positions=48, vocab=97, hidden=24, layers=2, heads=6, kv_heads=2, head_dim=8, ffn=40,
          dtype=torch.bfloat16),
    # Every query head has its own keys; head_dim is near to hidden_size.
    Shape("f16-mha-untied", 2, positions=40, vocab=61, hidden=20, layers=2, heads=3, kv_heads=3, head_dim=16, ffn=44,
          dtype=torch.float16, tied=False, theta=10_000, config_style=4),
    # Biases on q, k, v and o, one kv head for seven, a vocabulary that is no round number.
    Shape("f32-bias-gqa7", 3, positions=56, vocab=131, hidden=26, layers=2, heads=7, kv_heads=1, head_dim=12, ffn=36,
          dtype=torch.float32, bias=True, config_style=4),
    # Three files and an index; the cuts fall inside layers. Another epsilon.
    Shape("sharded", 4, positions=48, vocab=71, hidden=18, layers=3, heads=4, kv_heads=2, head_dim=6, ffn=30,
          dtype=torch.bfloat16, tied=False, eps=1e-5, shards=3),
    # Nothing is a multiple of eight. The sequence fills max_position_embeddings.
    Shape("one-layer-odd", 5, positions=64, vocab=17, hidden=33, layers=1, heads=4, kv_heads=2, head_dim=10, ffn=7,
          dtype=torch.bfloat16, tied=False, theta=500_000, max_positions=64),
    # Matrices in bf16, norms in f32, in one file.
    Shape("mixed-dtypes", 6, positions=48, vocab=53, hidden=32, layers=2, heads=4, kv_heads=1, head_dim=8, ffn=48,
          dtype=torch.bfloat16, norm_dtype=torch.float32),
    # Far positions, and two lists of end tokens that differ.
    Shape("long-eos-list", 17, positions=300, vocab=24, hidden=16, layers=2, heads=5, kv_heads=1, head_dim=14, ffn=20,
          dtype=torch.bfloat16, tied=False, theta=10_000, max_positions=512, eos=[3, 7],
          generation={"eos_token_id": [7, 11], "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    # As Qwen3-0.6B is published: tied, and yet a copy of the embedding is stored as lm_head.weight.
    Shape("tied-with-head", 8, positions=48, vocab=59, hidden=16, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=24,
          dtype=torch.bfloat16, stored_head=True, config_style=4, eos=2,
          generation={"bos_token_id": 1, "eos_token_id": [2, 1], "pad_token_id": 1, "do_sample": True,
                      "temperature": 0.6, "top_k": 20, "top_p": 0.95}),
]


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    logging.disable_progress_bar()
    for shape in SHAPES:
        folder = GOLDEN / shape.name
        write_checkpoint(shape, folder)
        write_golden(folder, folder, random_tokens(shape), lambda logits: torch.arange(logits.shape[1]))
    for name in ["storyteller", "storyteller-draft"]:
        checkpoint = ASSETS / name
        write_golden(checkpoint, GOLDEN / name, text_tokens(checkpoint, ALICE), spread_ids)


def write_checkpoint(shape, folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_json(shape))
    if shape.generation:
        write_json(folder / "generation_config.json", shape.generation)
    if shape.shards == 1:
        write_tensors(folder / "model.safetensors", random_tensors(shape))
    else:
        write_shards(random_tensors(shape), shape.shards, folder)


def config_json(shape):
    """The config in the dialect of transformers 4 or 5."""
    config = json.loads(qwen3_config(shape).to_json_string())
    if shape.config_style == 4:
        theta = config.pop("rope_parameters")["rope_theta"]
        config["rope_theta"] = int(theta)
        config["rope_scaling"] = None
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.51.0"
        del config["layer_types"]
        config.pop("pad_token_id", None)
    return dict(sorted(config.items()))


def qwen3_config(shape):
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        rms_norm_eps=shape.eps,
        attention_bias=shape.bias,
        tie_word_embeddings=shape.tied,
        rope_parameters={"rope_type": "default", "rope_theta": float(shape.theta)},
        bos_token_id=1,
        eos_token_id=shape.eos,
        dtype=str(shape.dtype).removeprefix("torch."),
    )
    config.architectures = ["Qwen3ForCausalLM"]
    return config


def random_tensors(shape):
    """Every tensor that transformers expects by name, filled from the seed."""
    with torch.device("meta"):
        expected = Qwen3ForCausalLM(qwen3_config(shape)).state_dict()

    rng = torch.Generator().manual_seed(shape.seed)
    tensors = {}
    for name, like in expected.items():
        if name == "lm_head.weight" and shape.tied:
            continue
        noise = torch.randn(like.shape, generator=rng)
        if name.endswith("norm.weight"):
            tensors[name] = (1 + 0.3 * noise).to(shape.norm_dtype or shape.dtype)
        elif name.endswith(".bias"):
            tensors[name] = (0.5 * noise).to(shape.dtype)
        else:
            fan_in = like.shape[1]
            tensors[name] = (1.5 / fan_in**0.5 * noise).to(shape.dtype)

    if shape.stored_head:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    return tensors


def write_shards(tensors, count, folder):
    """Cuts the tensors, in order, into files of about equal size, with an index."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    shards, start, weight_map = [{} for _ in range(count)], 0, {}
    for name, tensor in tensors.items():
        shards[start * count // total][name] = tensor
        start += tensor.nbytes
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{count:05}.safetensors"
        write_tensors(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write_tensors(path, tensors):
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors leaves a file that only its owner can read


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def random_tokens(shape):
    """`positions` seeded ids, the first and the last of the vocabulary among them."""
    rng = torch.Generator().manual_seed(1000 + shape.seed)
    tokens = torch.randint(shape.vocab, (shape.positions,), generator=rng)
    tokens[1] = 0
    tokens[2] = shape.vocab - 1
    return tokens


def text_tokens(checkpoint, text):
    """The first tokens of the text, with the begin token that the tokenizer puts before it."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokens = tokenizer(text.read_text(encoding="utf-8"))["input_ids"]
    if len(tokens) < BUNDLED_TOKENS:
        sys.exit(f"{text}: {len(tokens)} tokens, {BUNDLED_TOKENS} needed")
    return torch.tensor(tokens[:BUNDLED_TOKENS])


def spread_ids(logits):
    """Some of the model's own first choices and ids spread evenly: BUNDLED_IDS, fewer where they meet."""
    favourites = logits.argmax(dim=1)[:: BUNDLED_TOKENS // 24].unique().tolist()
    evenly = torch.linspace(0, logits.shape[1] - 1, BUNDLED_IDS - len(favourites)).long().tolist()
    return torch.tensor(sorted({*favourites, *evenly}))


def write_golden(checkpoint, folder, tokens, choose_ids):
    """Runs the stored checkpoint over the tokens and records what it says."""
    logits = reference_logits(checkpoint, tokens)
    scale = logits.abs().amax(dim=1)
    best = logits.topk(2, dim=1).values
    margin = ((best[:, 0] - best[:, 1]) / scale).min().item()
    if margin < ARGMAX_MARGIN:
        sys.exit(f"{folder.name}: two logits are within {margin:.1e} of each other: choose another seed or text")

    ids = choose_ids(logits)
    golden = {
        "tokens": tokens,
        "ids": ids,
        "logits": logits[:, ids].contiguous(),
        "scale": scale,
        "argmax": logits.argmax(dim=1),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "golden.safetensors", golden)
    print(f"{folder.name:18} {len(tokens):4} tokens, {len(ids):4} ids, largest logit {scale.max():6.2f}, "
          f"closest first and second {margin:.1e} of the scale")


def reference_logits(checkpoint, tokens):
    """[tokens, vocabulary] in float32, from one pass over all tokens."""
    model, report = Qwen3ForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    # A tied checkpoint may store lm_head.weight or leave it out; anything else must match.
    wrong = (set(report["missing_keys"]) | set(report["unexpected_keys"])) - {"lm_head.weight"}
    if wrong or report["mismatched_keys"]:
        sys.exit(f"{checkpoint}: tensors do not match the model: {sorted(wrong)} {report['mismatched_keys']}")
    if any(weight.dtype != torch.float32 for weight in model.parameters()):
        sys.exit(f"{checkpoint}: loaded with weights that are not float32")

    with torch.inference_mode():
        return model.eval()(tokens[None], use_cache=False).logits[0]


if __name__ == "__main__":
    main()

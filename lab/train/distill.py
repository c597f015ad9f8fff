"""What the target knows, for its draft to learn: texts that it writes, and its probabilities."""

from pathlib import Path

import torch
from torch.nn.functional import kl_div, log_softmax
from tqdm import tqdm
from transformers import DynamicCache, Qwen3ForCausalLM

from corpus import InputError

TEXT = 256  # tokens in a text that the target writes
BEGINNING = 16  # of them given: <|endoftext|> and what stands somewhere in the corpus
TOGETHER = 128  # texts written at once
MEASURED = 128  # texts that agreement is measured on, of each kind


def load_model(folder: Path, device: str) -> Qwen3ForCausalLM:
    """A model to ask, not to train: float32, as it was saved."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json in it (a model folder is needed here)")
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()


@torch.inference_mode()
def write_texts(target: Qwen3ForCausalLM, stream: torch.Tensor, texts: int, greedy: bool,
                rng: torch.Generator) -> torch.Tensor:
    """Texts of TEXT tokens, one after another as in the stream that lends them their beginnings."""
    rounds = []
    what = "greedy" if greedy else "drawn"
    for first in tqdm(range(0, texts, TOGETHER), desc=f"writing, {what}", disable=None):
        count = min(TOGETHER, texts - first)
        starts = torch.randint(len(stream) - BEGINNING, (count,), generator=rng)
        # Token 0 is <|endoftext|>, which goes before every text.
        written = torch.stack([torch.cat([stream.new_zeros(1), stream[start : start + BEGINNING - 1]])
                               for start in starts])
        cache, fresh = DynamicCache(config=target.config), written
        while written.shape[1] < TEXT:
            with torch.autocast(target.device.type, dtype=torch.bfloat16):
                logits = target(fresh.to(target.device), past_key_values=cache, logits_to_keep=1).logits
            fresh = pick(logits[:, -1].float().cpu(), greedy, rng)
            written = torch.cat([written, fresh], dim=1)
        rounds.append(written.flatten())
    return torch.cat(rounds)


def pick(logits: torch.Tensor, greedy: bool, rng: torch.Generator) -> torch.Tensor:
    """One token a row: the likeliest, or one by chance at temperature 1."""
    if greedy:
        return logits.argmax(dim=-1, keepdim=True)
    sums = logits.softmax(dim=-1).cumsum(dim=-1)
    draws = torch.rand((len(logits), 1), generator=rng) * sums[:, -1:]
    return torch.searchsorted(sums, draws, right=True).clamp(max=logits.shape[1] - 1)


def logits_of(model: Qwen3ForCausalLM, inputs: torch.Tensor) -> torch.Tensor:
    """A row for each token, [windows × tokens, vocabulary], in float32."""
    with torch.autocast(model.device.type, dtype=torch.bfloat16):
        logits = model(inputs.to(model.device), use_cache=False).logits
    return logits.float().flatten(0, 1)


def divergence(draft: Qwen3ForCausalLM, target: Qwen3ForCausalLM, inputs: torch.Tensor) -> torch.Tensor:
    """KL(target || draft) over the whole vocabulary at temperature 1, nats a token."""
    with torch.inference_mode():
        asked = log_softmax(logits_of(target, inputs), dim=-1)
    # A clone is an ordinary tensor again, which the backward pass may keep.
    return kl_div(log_softmax(logits_of(draft, inputs), dim=-1), asked.clone(), reduction="batchmean", log_target=True)


@torch.inference_mode()
def agreement(draft: Qwen3ForCausalLM, target: Qwen3ForCausalLM, texts: torch.Tensor) -> tuple[float, float]:
    """Of the tokens that the target wrote: the share where both models' likeliest token is the same,
    and the mean of Σ min(p, q), the share of draft tokens that the sample rule accepts.
    """
    same, shared, tokens = 0, 0.0, 0
    for window in texts.view(-1, TEXT).split(8):
        # What is read before the last given token was not written by the target.
        rows = [logits_of(model, window).view(len(window), TEXT, -1)[:, BEGINNING - 1 : -1]
                for model in (draft, target)]
        same += (rows[0].argmax(dim=-1) == rows[1].argmax(dim=-1)).sum().item()
        shared += torch.minimum(rows[0].softmax(dim=-1), rows[1].softmax(dim=-1)).sum().item()
        tokens += rows[0].shape[0] * rows[0].shape[1]
    return same / tokens, shared / tokens


def report_agreement(draft: Qwen3ForCausalLM, target: Qwen3ForCausalLM, stream: torch.Tensor):
    """Prints the agreement on texts that begin as held-out documents do and that the target goes on with."""
    rng = torch.Generator().manual_seed(1)
    for greedy, what in [(True, "greedy"), (False, "drawn by chance")]:
        texts = write_texts(target, stream, MEASURED, greedy, rng)
        same, shared = agreement(draft, target, texts)
        print(f"texts of the target's, {what}: first choices agree for {100 * same:.1f} %, "
              f"probabilities overlap by {100 * shared:.1f} %", flush=True)

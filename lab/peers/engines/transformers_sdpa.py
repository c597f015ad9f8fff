"""Hugging Face transformers: eager PyTorch."""

import time

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from worker import tokens_of


class Engine:
    def __init__(self, folder, config, threads):
        torch.set_num_threads(threads)
        self.vocabulary = config["vocab_size"]
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
        self.arithmetic = "bf16"
        self.kept = {}

    @torch.inference_mode()
    def read(self, rows, cache):
        return self.model(torch.tensor(rows), past_key_values=cache, use_cache=True, logits_to_keep=1).logits

    def choice(self, tokens):
        return self.read([tokens], DynamicCache(config=self.model.config))[0, -1].argmax().item()

    def prefill(self, round, tokens):
        sequence = tokens_of(tokens, self.vocabulary, round)
        start = time.perf_counter()
        self.read([sequence], DynamicCache(config=self.model.config))
        return tokens, time.perf_counter() - start

    def decode(self, round, context, steps, sequences=1, keep=False):
        rows = [tokens_of(context + steps, self.vocabulary, 0 if keep else round, sequence) for sequence in range(sequences)]
        cache = self.kept.get(context) if keep else None
        if cache is None:
            cache = DynamicCache(config=self.model.config)
            self.read([row[:context] for row in rows], cache)
        if keep:
            self.kept[context] = cache
        start = time.perf_counter()
        for step in range(context, context + steps):
            self.read([row[step : step + 1] for row in rows], cache)
        seconds = time.perf_counter() - start
        cache.crop(-steps)
        return sequences * steps, seconds

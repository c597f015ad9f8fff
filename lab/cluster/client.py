#!/usr/bin/env python3
"""Asks one server, and prints what it said and counted as one JSON object.

    python3 lab/cluster/client.py http://127.0.0.1:8080 --page-size 32 --pages 64

It does not know whose server it asks: it speaks OpenAI's protocol, with `return_token_ids`, and reads two counters of
/metrics. Needs nothing but Python 3.
"""

import argparse
import http.client
import json
import random
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

# How texts begin. One has characters of several bytes, for the tokenizers.
BEGINNINGS = [
    "Once upon a time",
    "The king had a",
    "One day the",
    "An old woman lived in the forest",
    "“Who are you?” said the",
    "There was a poor miller who had nothing left but",
    "The princess — Zoë was her name — took the golden ball and",
    "In the middle of the night he heard",
]

# What many prompts begin with, as with a system prompt.
STORY = """\
Once upon a time there was a miller who had three daughters, and the youngest of them could count. She counted the sacks
that came in and the sacks that went out, and in the evening she told her father how many there were. One day a man in a
grey coat came to the mill, and he brought a single sack, and it was tied with a golden thread. "Grind this for me," he
said, "but do not look into it, and you shall have a gold piece for every page of the book that I carry." The miller was
glad, for he was poor. But his daughter said, "Father, ask him first how many pages the book has." The man laughed, and
he opened the book, and there was nothing written in it from the first page to the last. "It has as many pages as there
are stories told in this house," said he, "and no more." Then the girl sat down by the fire and began to tell.
"""

QUESTIONS = [
    "The eldest daughter said,", "When the moon rose,", "In the morning the sack was", "Then the man in the grey coat",
]

PARTS = "texts,shared,documents,random,at_once"
ANSWER_LIMIT = 300  # seconds
TRIES = 100  # to see a counter move, 50 ms apart


class Server:
    """One server, asked for one model."""

    def __init__(self, address: str, seconds: float):
        self.address, self.seconds = address.rstrip("/"), seconds
        self.model = self.get("/v1/models")["data"][0]["id"]

    def open(self, request) -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=self.seconds) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            raise RuntimeError(f"{self.address} refused with {error.code}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"{self.address} did not answer within {self.seconds:.0f} s: {error}") from error

    def get(self, path: str) -> dict:
        return json.loads(self.open(self.address + path))

    def complete(self, prompt, new_tokens: int, logprobs: int | None = None) -> dict:
        """The likeliest text after a prompt, a string or token ids."""
        asked = {"model": self.model, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0}
        asked["return_token_ids"] = True
        if logprobs:
            asked["logprobs"] = logprobs
        request = urllib.request.Request(
            self.address + "/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        return json.loads(self.open(request))["choices"][0]

    def counter(self, name: str) -> int:
        """The sum of a counter over its labels."""
        lines = self.open(self.address + "/metrics").decode().splitlines()
        return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}_total{{")))

    def counters(self) -> tuple[int, int]:
        return self.counter("prefix_cache_queries"), self.counter("prefix_cache_hits")

    def ask(self, what: str, prompt, new_tokens: int) -> tuple[dict, list[int], list[int]]:
        """A line of the trace, and the ids of prompt and text."""
        queries, hits = self.counters()
        choice = self.complete(prompt, new_tokens)
        ids = choice["prompt_token_ids"]
        line = {"what": what, "prompt": len(ids), "new": choice["token_ids"]} | self.counted(queries, hits, len(ids))
        return line, ids, choice["token_ids"]

    def counted(self, queries: int, hits: int, asked: int) -> dict:
        """What was counted since; an engine may answer first and count then."""
        for _ in range(TRIES):
            now = self.counters()
            if now[0] - queries >= asked:
                break
            time.sleep(0.05)
        return {"queries": now[0] - queries, "hits": now[1] - hits}


def texts(server: Server, new_tokens: int) -> list[dict]:
    """The likeliest text of each beginning, all asked for at the same time."""
    with ThreadPoolExecutor(len(BEGINNINGS)) as pool:
        choices = list(pool.map(lambda beginning: server.complete(beginning, new_tokens, logprobs=2), BEGINNINGS))
    found = []
    for beginning, choice in zip(BEGINNINGS, choices):
        top = [sorted(row.values(), reverse=True) for row in choice["logprobs"]["top_logprobs"]]
        found.append({
            "beginning": beginning,
            "prompt": choice["prompt_token_ids"],
            "new": choice["token_ids"],
            "text": choice["text"],
            "logprobs": choice["logprobs"]["token_logprobs"],
            # How far apart the first and the second choice were.
            "gaps": [row[0] - row[1] if len(row) > 1 else None for row in top],
        })
    return found


def shared(server: Server, page: int) -> list[dict]:
    """Prompts that begin alike, one after the other; each line with what the counters say of it."""
    lines = []

    def ask(what: str, prompt, new_tokens: int = 8) -> tuple[list[int], list[int]]:
        line, ids, new = server.ask(what, prompt, new_tokens)
        lines.append(line)
        return ids, new

    story, _ = ask("a story, for the first time", STORY)
    if len(story) < 4 * page + 2:
        raise RuntimeError(f"the story has {len(story)} tokens, expected at least {4 * page + 2}: choose smaller pages")
    ask("the same again", story)
    ask("its first 3 pages, to the token", story[: 3 * page])
    ask("and one token more", story[: 3 * page + 1])
    ask("3 pages less one token", story[: 3 * page - 1])
    ask("it parts inside the second page", story[: page + page // 2] + story[: 2 * page])
    ask("its second page, without the first", story[page : 3 * page + 2])
    for number, question in enumerate(QUESTIONS, 1):
        ask(f"question {number} about the story", STORY + question)
    said, answer = ask("a chat: the first turn", story, 2 * page)
    said, answer = ask("its second turn", said + answer + story[:20], 2 * page)
    ask("its third turn", said + answer + story[20:40])
    return lines


def documents(server: Server, page: int, pages: int) -> list[dict]:
    """Four documents that together are larger than the pool, asked about in turns: some pages have to go."""
    long = pages // 4
    lines = []
    for turn in range(3):
        for document in range(4):
            # Numbers that no tokenizer has made: only that they are equal or not matters here.
            text = [100 + (token * 7919 + document * 104729) % 3000 for token in range(long * page)]
            question = [100 + (token * 31 + document * 7 + turn * 1009) % 3000 for token in range(page // 2)]
            line, _, _ = server.ask(f"round {turn + 1}, document {document + 1}", text + question, 4)
            lines.append(line)
    return lines


def at_random(server: Server, page: int, pages: int) -> list[dict]:
    """Sixty prompts that take up six long texts, at places and for lengths drawn by chance, always the same."""
    draw = random.Random(23)
    long = pages * page // 3
    sources = [[100 + (token * 7919 + source * 104729 + 17) % 3000 for token in range(long)] for source in range(6)]
    lines = []
    for number in range(60):
        prompt = draw.choice(sources)[: draw.randrange(1, long)]
        if draw.random() < 0.3:
            prompt = prompt[: draw.randrange(1, len(prompt) + 1)]
            prompt += [100 + draw.randrange(3000) for _ in range(draw.randrange(2 * page))]
        line, _, _ = server.ask(f"prompt {number + 1}", prompt, draw.randrange(2, 12))
        lines.append(line)
    return lines


def at_once(server: Server, page: int) -> dict:
    """Eight prompts that are new to the server, alike but for their last token, in one request."""
    same = [100 + (token * 31 + 977) % 3000 for token in range(6 * page + page // 4)]
    queries, hits = server.counters()
    server.complete([same + [100 + text] for text in range(8)], 8)
    prompt = len(same) + 1
    return {"prompt": prompt, "texts": 8} | server.counted(queries, hits, 8 * prompt)


def main():
    parser = argparse.ArgumentParser(description="Ask one server, and print what it said and counted.")
    parser.add_argument("address", metavar="URL", help="such as http://127.0.0.1:8080")
    parser.add_argument("--parts", default=PARTS, metavar="A,B", help=f"default: {PARTS}; also drafts")
    parser.add_argument("--new-tokens", type=int, default=60, metavar="N", help="of each text (default: 60)")
    parser.add_argument("--page-size", type=int, default=32, metavar="P", help="the server's (default: 32)")
    parser.add_argument("--pages", type=int, default=64, metavar="N", help="the server's (default: 64)")
    args = parser.parse_args()
    parts = {
        "texts": lambda server: texts(server, args.new_tokens),
        "shared": lambda server: shared(server, args.page_size),
        "documents": lambda server: documents(server, args.page_size, args.pages),
        "random": lambda server: at_random(server, args.page_size, args.pages),
        "at_once": lambda server: at_once(server, args.page_size),
        "drafts": lambda server: {
            name: server.counter(f"spec_decode_num_{name}") for name in ("drafts", "draft_tokens", "accepted_tokens")
        },
    }
    asked = args.parts.split(",")
    if unknown := [part for part in asked if part not in parts]:
        parser.error(f"unknown part {unknown[0]!r} (supported: {', '.join(parts)})")
    try:
        server = Server(args.address, ANSWER_LIMIT)
        print(json.dumps({part: parts[part](server) for part in asked}))
    except (RuntimeError, KeyError, IndexError, TypeError, ValueError) as error:
        sys.exit(f"client.py: {error if isinstance(error, RuntimeError) else f'not the answer expected: {error!r}'}")


if __name__ == "__main__":
    main()

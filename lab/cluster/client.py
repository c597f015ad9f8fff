"""Asks one server, ours or vLLM, and returns what it generated and counted.

It does not know whose server it asks: it speaks OpenAI's protocol, with `return_token_ids`, and reads two counters of
/metrics. Needs nothing but Python 3.
"""

import http.client
import json
import random
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from servers import PAGE_SIZE, PAGES

NEW_TOKENS = 60  # of each output

# One has characters of several bytes, for the tokenizers.
PROMPTS = [
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

ANSWER_LIMIT = 300  # seconds
TRIES = 100  # to see a counter move, 50 ms apart


class Server:
    """One server, asked for one model."""

    def __init__(self, address: str):
        self.address = address.rstrip("/")
        self.model = self.get("/v1/models")["data"][0]["id"]

    def open(self, request) -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_LIMIT) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            raise RuntimeError(f"{self.address} refused with {error.code}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"{self.address} did not answer within {ANSWER_LIMIT} s: {error}") from error

    def get(self, path: str) -> dict:
        return json.loads(self.open(self.address + path))

    def complete(self, prompt, new_tokens: int, logprobs: int | None = None) -> dict:
        """The likeliest output after a prompt, a string or token ids."""
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
        """A line of the trace, and the ids of prompt and output."""
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


def outputs(server: Server) -> list[dict]:
    """The likeliest output of each prompt, all asked for at the same time."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        choices = list(pool.map(lambda prompt: server.complete(prompt, NEW_TOKENS, logprobs=2), PROMPTS))
    found = []
    for text, choice in zip(PROMPTS, choices):
        top = [sorted(row.values(), reverse=True) for row in choice["logprobs"]["top_logprobs"]]
        found.append({
            "text": text,
            "prompt": choice["prompt_token_ids"],
            "new": choice["token_ids"],
            "logprobs": choice["logprobs"]["token_logprobs"],
            # How far apart the first and the second choice were.
            "gaps": [row[0] - row[1] if len(row) > 1 else None for row in top],
        })
    return found


def shared(server: Server) -> list[dict]:
    """Prompts that begin alike, one after the other; each line with what the counters say of it."""
    page, lines = PAGE_SIZE, []

    def ask(what: str, prompt, new_tokens: int = 8) -> tuple[list[int], list[int]]:
        line, ids, new = server.ask(what, prompt, new_tokens)
        lines.append(line)
        return ids, new

    story, _ = ask("a story, for the first time", STORY)
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


def documents(server: Server) -> list[dict]:
    """Four documents that together are larger than the pool, asked about in turns: some pages are evicted."""
    lines = []
    for turn in range(3):
        for document in range(4):
            text = made_up(PAGES // 4 * PAGE_SIZE, 7919, document * 104729)
            question = made_up(PAGE_SIZE // 2, 31, document * 7 + turn * 1009)
            lines.append(server.ask(f"round {turn + 1}, document {document + 1}", text + question, 4)[0])
    return lines


def at_random(server: Server) -> list[dict]:
    """Sixty prompts that take up six long sequences, at places and for lengths drawn by chance, always the same."""
    draw = random.Random(23)
    long = PAGES * PAGE_SIZE // 3
    sources = [made_up(long, 7919, source * 104729 + 17) for source in range(6)]
    lines = []
    for number in range(60):
        prompt = draw.choice(sources)[: draw.randrange(1, long)]
        if draw.random() < 0.3:
            prompt = prompt[: draw.randrange(1, len(prompt) + 1)]
            prompt += [100 + draw.randrange(3000) for _ in range(draw.randrange(2 * PAGE_SIZE))]
        lines.append(server.ask(f"prompt {number + 1}", prompt, draw.randrange(2, 12))[0])
    return lines


def at_once(server: Server) -> dict:
    """Eight prompts that are new to the server, alike but for their last token, in one request."""
    same = made_up(6 * PAGE_SIZE + PAGE_SIZE // 4, 31, 977)
    queries, hits = server.counters()
    server.complete([same + [100 + last] for last in range(8)], 8)
    prompt = len(same) + 1
    return {"prompt": prompt, "prompts": 8} | server.counted(queries, hits, 8 * prompt)


def made_up(count: int, step: int, first: int) -> list[int]:
    """Tokens that no tokenizer has made: only whether they are equal matters here."""
    return [100 + (token * step + first) % 3000 for token in range(count)]


def drafts(server: Server) -> dict:
    return {name: server.counter(f"spec_decode_num_{name}") for name in ("drafts", "draft_tokens", "accepted_tokens")}


PARTS = {part.__name__: part for part in (outputs, shared, documents, at_random, at_once, drafts)}


def ask(address: str, parts: list[str]) -> dict:
    """What a server generates and counts in each of these parts."""
    server = Server(address)
    return {part: PARTS[part](server) for part in parts}

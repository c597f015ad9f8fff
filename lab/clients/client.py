"""The server, asked by OpenAI's own Python client: each output is the one that `generate` writes."""

import json
import os
import subprocess
import urllib.request

import openai

ADDRESS, MODEL, PROGRAM = os.environ["ADDRESS"], os.environ["MODEL"], os.environ["PROGRAM"]
BEGINNINGS = ["Once upon a time", "The king had a", "One day the"]

client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="sesame", max_retries=0)
checks = 0


def same(what, found, expected):
    global checks
    checks += 1
    assert found == expected, f"{what}:\n  found    {found!r}\n  expected {expected!r}"


def generate(prompt, *arguments):
    command = [PROGRAM, "generate", prompt, "--model", MODEL, "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def greedy(prompt, tokens):
    return generate(prompt, "--temperature", "0", "--max-new-tokens", str(tokens))


def refused(kind, status, ask):
    try:
        ask()
    except kind as error:
        same(kind.__name__, error.status_code, status)
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def metric(name):
    request = urllib.request.Request(f"{ADDRESS}/metrics", headers={"Authorization": "Bearer sesame"})
    lines = urllib.request.urlopen(request).read().decode().splitlines()
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{")]


same("models", [model.id for model in client.models.list()], ["storyteller"])

for prompt in BEGINNINGS:
    story = greedy(prompt, 40)
    asked = dict(model="storyteller", prompt=prompt, temperature=0, max_tokens=40)
    whole = client.completions.create(**asked)
    same(prompt, whole.choices[0].text, story["text"])
    n_prompt, n_new = len(story["tokens"]["prompt"]), len(story["tokens"]["new"])
    same("usage", (whole.usage.prompt_tokens, whole.usage.completion_tokens), (n_prompt, n_new))
    stream = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    same("a stream", "".join(chunk.choices[0].text for chunk in stream if chunk.choices), story["text"])
    same("usage of a stream", stream[-1].usage.total_tokens, n_prompt + n_new)
    same("why it ended", stream[-2].choices[0].finish_reason, whole.choices[0].finish_reason)

stories = [greedy(prompt, 20) for prompt in BEGINNINGS]
asked = dict(model="storyteller", temperature=0, max_tokens=20)
several = client.completions.create(**asked, prompt=BEGINNINGS)
same("several prompts", [choice.text for choice in several.choices], [story["text"] for story in stories])
ids = client.completions.create(**asked, prompt=[story["tokens"]["prompt"] for story in stories])
same("token ids", [choice.text for choice in ids.choices], [story["text"] for story in stories])
echo = client.completions.create(**asked, prompt=BEGINNINGS[0], echo=True)
same("echo", echo.choices[0].text, BEGINNINGS[0] + stories[0]["text"])

for story in stories:
    prompt = story["tokens"]["prompt"]
    # As evaluation programs ask. That the scores are the model's is checked in crates/cli/tests/serve/scores.rs.
    for max_tokens in [0, 1]:
        scored = client.completions.create(
            model="storyteller", prompt=prompt, temperature=0, max_tokens=max_tokens, echo=True, logprobs=1
        ).choices[0]
        told, n = scored.logprobs.token_logprobs, len(prompt) + max_tokens
        same("scores", (told[0], len(told), len(scored.logprobs.tokens)), (None, n, n))
        same("no likeliest before the first", [i for i, top in enumerate(scored.logprobs.top_logprobs) if top is None], [0])

# vLLM's fields go through the client's extra_body.
asked = dict(model="storyteller", prompt=BEGINNINGS[0], temperature=0, max_tokens=20)
new = stories[0]["tokens"]["new"]
ends = client.completions.create(**asked, extra_body={"stop_token_ids": [new[9]], "return_token_ids": True})
same("a stop token", (ends.choices[0].token_ids, ends.choices[0].finish_reason), (new[: new.index(new[9])], "stop"))
least = client.completions.create(**asked, extra_body={"stop_token_ids": [new[9]], "min_tokens": 15, "ignore_eos": True})
assert least.usage.completion_tokens >= 15, least.usage

samples = generate(BEGINNINGS[1], "--samples", "3", "--seed", "41", "--max-new-tokens", "30")
several = client.completions.create(model="storyteller", prompt=BEGINNINGS[1], n=3, seed=41, max_tokens=30)
same("samples", [choice.text for choice in several.choices], [text["text"] for text in samples["outputs"]])

story = greedy(BEGINNINGS[0], 60)["text"]
stop = story[40:46]
cut = client.completions.create(
    model="storyteller", prompt=BEGINNINGS[0], temperature=0, max_tokens=60, stop=[stop], logprobs=2
).choices[0]
same("a stop", (cut.text, cut.finish_reason), (story[: story.index(stop)], "stop"))
same("logprobs", len(cut.logprobs.tokens), len(cut.logprobs.token_logprobs))
assert all(2 <= len(top) <= 3 for top in cut.logprobs.top_logprobs)

told = greedy("user: Tell me a story.\nteller:", 30)
asked = dict(
    model="storyteller", messages=[{"role": "user", "content": " Tell me a story. "}], temperature=0, max_completion_tokens=30
)
answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
same("a chat", (answer.choices[0].message.role, answer.choices[0].message.content), ("assistant", told["text"]))
same("its logprobs", len(answer.choices[0].logprobs.content), len(told["tokens"]["new"]))
stream = client.chat.completions.create(**asked, stream=True)
same("a chat as a stream", "".join(chunk.choices[0].delta.content or "" for chunk in stream), told["text"])

asked = dict(model="storyteller", prompt="a")
error = refused(openai.BadRequestError, 400, lambda: client.completions.create(**asked, n=0))
same("what is wrong", error.param, "n")
error = refused(openai.BadRequestError, 400, lambda: client.completions.create(**asked, max_tokens=5000))
same("too long", error.code, "context_length_exceeded")
refused(openai.NotFoundError, 404, lambda: client.completions.create(model="gpt-4", prompt="a"))
stranger = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="guess", max_retries=0)
refused(openai.AuthenticationError, 401, lambda: stranger.completions.create(**asked))

with client.completions.create(**asked, max_tokens=900, stream=True, seed=1, n=8) as stream:
    next(iter(stream))
for _ in range(1000):
    if metric("vllm:num_requests_running") == [0.0]:
        break
same("sequences that run when their client has gone", metric("vllm:num_requests_running"), [0.0])

print(f"openai {openai.__version__} for Python: {checks} answers as expected")

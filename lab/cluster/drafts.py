"""What vLLM counts of its draft tokens, computed from the outputs: why its numbers are not ours.

Both verify draft tokens and keep those that the model chooses itself, so the outputs are the same. They count differently:

    ours    draft tokens from the prompt on, and never more than the output may still have
    vLLM    its first token without a draft, then as many as it may each time, also beyond the end of the output

And of equally good places in the sequence, vLLM's n-gram proposer on a processor takes the earliest, prompt lookup the latest.
"""

from collections.abc import Callable


def counted_by_vllm(sequences: list, limit: int, draft_len: int, draft: Callable) -> dict | None:
    """Draft tokens made and accepted for outputs of `limit` tokens, by vLLM's way.

    `sequences`: prompt and output of each, the output by `draft_len` longer than the limit. `None` if one has ended before.
    """
    drafted = accepted = 0
    for prompt, output in sequences:
        if len(output) < limit + draft_len:
            return None
        done = 1
        while done < limit:
            tokens = draft(prompt + output[:done], draft_len)
            kept = 0
            while kept < len(tokens) and tokens[kept] == output[done + kept]:
                kept += 1
            drafted += len(tokens)
            accepted += kept
            done += kept + 1
    return {"drafted": drafted, "accepted": accepted}


def earliest(longest: int) -> Callable:
    """What followed the first place where the newest tokens stand, as many of them as stand anywhere, at most `longest`."""

    def draft(tokens: list, k: int) -> list:
        for n in range(min(longest, len(tokens) - 1), 0, -1):
            newest = tokens[-n:]
            for place in range(len(tokens) - n):
                if tokens[place : place + n] == newest:
                    return tokens[place + n : place + n + k]
        return []

    return draft

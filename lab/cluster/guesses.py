"""What vLLM counts of its guesses, computed from the texts: why its numbers are not ours.

Both verify guesses and keep those that the model chooses itself, so the texts are the same. They count differently:

    ours    guesses from the prompt on, and never more than the text may still have
    vLLM    its first token without guesses, then as many as it may each time, also beyond the end of the text

And of equally good places in the text, vLLM's n-gram proposer on a processor takes the earliest, prompt lookup the latest.
"""

from collections.abc import Callable


def counted_by_vllm(stories: list, limit: int, draft_len: int, draft: Callable) -> dict | None:
    """Guesses made and kept for texts of `limit` tokens, by vLLM's way.

    `stories`: prompt and text of each, the text by `draft_len` longer than the limit. `None` if one has ended before.
    """
    guessed = accepted = 0
    for prompt, text in stories:
        if len(text) < limit + draft_len:
            return None
        done = 1
        while done < limit:
            guesses = draft(prompt + text[:done], draft_len)
            kept = 0
            while kept < len(guesses) and guesses[kept] == text[done + kept]:
                kept += 1
            guessed += len(guesses)
            accepted += kept
            done += kept + 1
    return {"drafted": guessed, "accepted": accepted}


def earliest(longest: int) -> Callable:
    """What followed the first place where the newest tokens stand, as many of them as stand anywhere, at most `longest`."""

    def draft(text: list, k: int) -> list:
        for n in range(min(longest, len(text) - 1), 0, -1):
            newest = text[-n:]
            for place in range(len(text) - n):
                if text[place : place + n] == newest:
                    return text[place + n : place + n + k]
        return []

    return draft

"""What every peer is asked: so many random tokens, new ones each time, so that no cache of prefixes helps."""

import random

PROMPT_TOKENS = 32
VOCABULARY = 10_000


def prompt_ids() -> list[int]:
    return random.choices(range(VOCABULARY), k=PROMPT_TOKENS)

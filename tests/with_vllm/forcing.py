"""A logits processor, loaded by vLLM, that makes a request's answer the text that it was given: whatever a step
computes, the next one sees the same tokens. vLLM takes the log-probabilities before it."""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class Forced(LogitsProcessor):
    def __init__(self, *_: Any) -> None:
        self._rows: dict[int, tuple[list[int], list[int]]] = {}
        """(the text, what was answered so far) by a request's row."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        def new(params: SamplingParams, _: Any, answered: list[int]) -> tuple[list[int], list[int]] | None:
            text = (params.extra_args or {}).get("text")
            return None if text is None else (text, answered)

        process_dict_updates(self._rows, batch_update, new)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (text, answered) in self._rows.items():
            logits[row] = -torch.inf
            logits[row, text[len(answered)]] = 0
        return logits

"""A trace of vLLM's steps in this process, as `harness profile` reads it."""

from pathlib import Path

import pytest
from tiny_vllm import opened, vllm_config

from harness.engines.base import DECODE_TRACE, PREFILL_TRACE
from harness.profile import profile_trace
from harness.specs.request import Request

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("any_share_of_python")]
REQUEST = Request(None, (tuple(range(2, 11)),), 12, ignore_eos=True)
STEPS = 4


def test_its_steps_are_whole_and_its_products_are_known(tmp_path: Path) -> None:
    with opened(vllm_config(tmp_path, "qwen3")) as engine:
        steps, stepped = [], engine._stepped
        engine._stepped = lambda: steps.append(1) or stepped()
        engine.trace(REQUEST, STEPS, tmp_path)
        assert len(steps) == 1 + 6 + STEPS + 1, "the prompt, then half of the answer before the traced steps"
        steps.clear()
        (tmp_path / "early").mkdir()
        engine.trace(REQUEST, STEPS, tmp_path / "early", first_step=2)
        assert len(steps) == 1 + 2 + STEPS + 1
        again = list(engine.generate(REQUEST))
    assert sum(len(chunk.token_ids) for chunk in again) == 12  # the traced request is gone
    profile = profile_trace(tmp_path / DECODE_TRACE).profile
    assert (profile.status, profile.num_steps) == ("complete", STEPS)
    calls = {part.kernel_class: part.num_calls for part in profile.classes}
    assert calls["linear"] >= 4 * 2 + 1 and calls["attention"] >= 2  # of two layers, and the head
    prompt = profile_trace(tmp_path / PREFILL_TRACE).profile
    assert (prompt.status, prompt.per, prompt.positions) == ("complete", "prompt", (0, 9))

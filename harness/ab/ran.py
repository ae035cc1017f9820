"""What of two configurations' difference came to run: fallbacks and defaults may leave a thing compared with itself."""

from __future__ import annotations

from typing import Any

from harness.errors import ConfigError
from harness.run_warnings import fallback_lines
from harness.specs.ab_run import Difference
from harness.specs.engine import EngineReport
from harness.specs.run import RunConfig

_BY_OPS = (
    "linear", "attention", "linear_attention", "prefill_linear", "prefill_attention", "prefill_linear_attention",
    "selection", "fuse",
)  # fmt: skip
_RESOLVED_AS = {"graph": ("compilation_mode", "cudagraph_mode"), "attention_backend": ("attention_backends",)}
"""Settings of vLLM that it resolves under another name than ours."""


def refuse_alike(difference: Difference, a: tuple[RunConfig, EngineReport], b: tuple[RunConfig, EngineReport]) -> None:
    """ConfigError where what was asked differs and what ran does not. An engine that does not tell what a setting came
    to is taken at its word, and a side whose counters stand at zero is named by them."""
    reports = (a[1], b[1])
    if any(report.counted_steps == 0 for report in reports):
        return
    ran_a, ran_b = (_came_to(difference.key.removeprefix("engine."), *side) for side in (a, b))
    if ran_a is None or ran_a != ran_b:
        return
    lines = [f"{name}: {line}" for name, report in zip("ab", reports, strict=True) for line in fallback_lines(report)]
    came_to = "; ".join(lines[:2]) or (f"{ran_a} in both" if not isinstance(ran_a, frozenset) else "the same backends")
    raise ConfigError(
        f"the configurations differ in {difference.key}, {difference.a!r} and {difference.b!r}, and ran the same:"
        f" {came_to}",
        "ask for what this device and model can have: `harness backends` lists it, `harness bench` shows what ran",
    )


def _came_to(key: str, config: RunConfig, report: EngineReport) -> Any | None:
    """What a key of the engine came to; None: the report does not say."""
    if key in _BY_OPS:
        asked = {"selected": False, "fallback_from": None, "fallback_reason": None}
        return frozenset(op.model_copy(update=asked) for op in report.ops) or None
    if report.kind == "native":
        taken = {"graph": report.graph, "elementwise": report.elementwise, "prefill_chunk": _chunk(config)}
        return taken.get(key)
    names = _RESOLVED_AS.get(key, (key,))
    return {name: report.resolved[name] for name in names} if report.resolved.keys() >= set(names) else None


def _chunk(config: RunConfig) -> int | None:
    """Prompt tokens that a step takes in fact, of prompts of a known length."""
    tokens = config.workload.input_tokens
    return None if tokens is None else min(tokens, getattr(config.engine, "prefill_chunk", tokens))

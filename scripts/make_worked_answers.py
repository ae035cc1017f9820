"""Write docs/worked-answers.md and its Chinese twin: their numbers are computed here, by what `harness plan` uses.

The texts are scripts/worked_answers/<language>.md, filled in by str.format.
Usage: python scripts/make_worked_answers.py
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.devices.datasheet import load_device_spec
from harness.models import ResolvedModel, resolve_model
from harness.plan.floors import request_bytes, step_floor
from harness.plan.row import plan_on_devices
from harness.plan.variants import Variants
from harness.plan.walls import device_walls
from harness.roofline import Floor, compute_floor_s, memory_floor_s
from harness.specs.device import DeviceSpec, SourcedFigure
from harness.specs.layer import LayerKind
from harness.specs.layout import model_tensors
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.latent_attention import LatentAttention
from harness.specs.plan import Plan, Scenario
from harness.units import gb_per_s, ms, num_bytes, percent
from harness.verdict import AT_WALL_FROM_FRAC, UNDERFED_BELOW_FRAC

ROOT = Path(__file__).resolve().parent.parent
TEXTS = Path(__file__).resolve().parent / "worked_answers"
PAGES = {"en": "worked-answers.md", "zh-CN": "worked-answers.zh-CN.md"}
WORDS: dict[str, dict[Any, str]] = {
    "en": {True: "yes", False: "no", "memory": "memory", "compute": "compute"},
    "zh-CN": {True: "是", False: "否", "memory": "内存", "compute": "算力"},
}

THIRTEEN_B = resolve_model("llama-2-13b")
ROUND_DEVICE = load_device_spec("a100").model_copy(
    update={"name": "2-tb-s", "memory_bytes_per_s": SourcedFigure(value=2e12, source="the question's round figure")}
)
NO_CACHE, CONTEXT, SHARED_BY = 1, 1024, 8
BATCHES = (1, 8, 64, 128, 256)
CHECKED_TOKENS = (1, 2, 4, 8, 16)
ACCEPTED_FRAC = 0.8
"""Of drafted tokens: an assumption of the example."""
MANY_HEADS, CROWDED = resolve_model("llama-2-7b"), Scenario(context=4096, batch=16)


def main() -> None:
    for language, page in PAGES.items():
        (ROOT / "docs" / page).write_text(worked_answers(language), encoding="utf-8")


def worked_answers(language: str) -> str:
    """The page in that language."""
    text = (TEXTS / f"{language}.md").read_text(encoding="utf-8")
    answers = {
        "alone": _alone(),
        "batch": _batch(language),
        "draft": _draft(),
        "cache": _cache(language),
        "busy": _busy(),
    }
    return text.format(**answers)


def _rows(rows: Iterable[Sequence[object]]) -> str:
    """Of a Markdown table whose head stands in the text."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def _plan(model: ResolvedModel, device: DeviceSpec, **scenario: int) -> Plan:
    return plan_on_devices(model, Scenario(**scenario), [device])[0]


def _shown(plan: Plan) -> dict[str, Any]:
    """A plan's figures, and some of them as people read them."""
    return {
        **plan.model_dump(),
        "floor": ms(plan.floor_s),
        "collectives": ms(plan.collectives_floor_s),
        "tokens_per_s": f"{plan.floor_tokens_per_s:,.1f}",
        "rank_step": num_bytes(plan.rank_step_bytes),
        "rank_weights": num_bytes(plan.rank_weight_read_bytes),
        "roof": gb_per_s(plan.roof_read_bytes_per_s),
        "ridge": f"{plan.ridge_flop_per_byte:.0f}",
        "request_kept": num_bytes(plan.kv_cache_bytes / plan.batch),
    }


def _alone() -> dict[str, Any]:
    """One device and several."""
    one, shared = (_plan(THIRTEEN_B, ROUND_DEVICE, context=CONTEXT, tensor_parallel=r) for r in (1, SHARED_BY))
    parameters = sum(tensor.num_elements for tensor in THIRTEEN_B.tensors)
    return {
        "one": _shown(one),
        "shared": _shown(shared),
        "parameters": f"{parameters / 1e9:.2f}",
        "parameters_yi": f"{parameters / 1e8:.1f}",
        "read_gb": f"{one.weight_read_bytes / 1e9:.2f}",
        "weights": ms(memory_floor_s(one.weight_read_bytes, one.roof_read_bytes_per_s)),
        "times": f"{one.floor_s / shared.floor_s:.3f}",
        "num_all_reduces": 2 * THIRTEEN_B.spec.num_layers,
    }


def _batch(language: str) -> dict[str, Any]:
    """The same step for more and more requests, next to without a cache and with one."""
    no_cache, cached = (
        [_plan(THIRTEEN_B, ROUND_DEVICE, context=context, batch=batch) for batch in BATCHES]
        for context in (NO_CACHE, CONTEXT)
    )
    words = WORDS[language]

    def rows(plans: Sequence[Plan], last: Callable[[Plan], object]) -> str:
        one = plans[0].floor_s
        return _rows((p.batch, ms(p.floor_s), f"{p.floor_s / one:.2f}", words[p.bound], last(p)) for p in plans)

    return {
        "no_cache": _shown(no_cache[0]),
        "no_cache_rows": rows(no_cache, lambda plan: f"{plan.floor_tokens_per_s:,.0f}"),
        "cached": _shown(cached[0]),
        "cached_rows": rows(cached, lambda plan: words[plan.fits_in_memory]),
    }


def _draft() -> dict[str, Any]:
    """Several drafted tokens of one request in a step. Of t tokens, one of them certain, (1 - a^t) / (1 - a) are kept
    on average if each drafted one is accepted alike and independently (Leviathan et al., 2023)."""
    floors = {tokens: _checking(tokens) for tokens in CHECKED_TOKENS}
    kept = {tokens: (1 - ACCEPTED_FRAC**tokens) / (1 - ACCEPTED_FRAC) for tokens in CHECKED_TOKENS}
    one = floors[1]
    rows = [
        (t, ms(f.floor_s), f"{f.floor_s / one.floor_s:.3f}", ms(f.compute_s), f"{kept[t]:.2f}", ms(f.floor_s / kept[t]))
        for t, f in floors.items()
    ]
    return {
        "step": ms(one.memory_s),
        "compute": ms(one.compute_s),
        "accepted": percent(ACCEPTED_FRAC),
        "rows": _rows(rows),
    }


def _checking(tokens: int) -> Floor:
    """A step over so many tokens of one request: weights and cache once, a row and a position for each."""
    traffic, walls = Variants(THIRTEEN_B).rank(Scenario()).traffic, device_walls(ROUND_DEVICE, THIRTEEN_B.spec.dtype)
    each_more = traffic.embedding_row_bytes + traffic.kv_bytes_per_context_token
    flop = sum(traffic.step_flop(CONTEXT + index) for index in range(tokens))
    peak = walls.peak_flop_per_s
    return Floor(
        memory_s=memory_floor_s(traffic.step_bytes(CONTEXT) + (tokens - 1) * each_more, walls.roof_read_bytes_per_s),
        compute_s=None if peak is None else compute_floor_s(flop, peak),
    )


def _cache(language: str) -> dict[str, Any]:
    """A crowded step of a model with full heads, its cache made smaller in each way; what helps most comes first."""
    words, base = WORDS[language], _crowded_floor_s(MANY_HEADS, CROWDED)
    remedies = [(*_effect(model, CROWDED), names[language], True) for names, model in _other_models()]
    remedies += [(*_effect(MANY_HEADS, scenario), names[language], False) for names, scenario in _other_caches()]
    mixer = MANY_HEADS.spec.kinds[0].mixer
    return {
        "num_heads": mixer.num_heads,
        "context": f"{CROWDED.context:,}",
        "batch": CROWDED.batch,
        "kept": _effect(MANY_HEADS, CROWDED)[1],
        "floor": ms(base),
        "weights": num_bytes(Variants(MANY_HEADS).rank(CROWDED).traffic.weight_read_bytes),
        "rows": _rows(
            (name, kept, ms(floor_s), f"{floor_s / base:.3f}", words[another])
            for floor_s, kept, name, another in sorted(remedies)
        ),
    }


def _crowded_floor_s(model: ResolvedModel, scenario: Scenario) -> float:
    walls = device_walls(ROUND_DEVICE, model.spec.dtype)
    return step_floor(Variants(model).rank(scenario), walls, scenario.context, scenario.batch).floor_s


def _effect(model: ResolvedModel, scenario: Scenario) -> tuple[float, str]:
    """(floor of the step, what a request keeps)."""
    kept = request_bytes(Variants(model).rank(scenario).traffic, scenario.context)
    return _crowded_floor_s(model, scenario), num_bytes(kept)


def _other_models() -> list[tuple[dict[str, str], ResolvedModel]]:
    """Layouts of models that exist, at this one's width and depth; the window is gpt-oss's pattern, only wider."""
    full = MANY_HEADS.spec.kinds[0].mixer
    grouped, window = full.model_copy(update={"num_kv_heads": 8}), full.model_copy(update={"window": 1024})
    latent = LatentAttention(
        num_heads=full.num_heads, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128,
    )  # fmt: skip
    delta = GatedDelta(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4)
    return [
        (
            {
                "en": f"{grouped.num_kv_heads} key heads for the {full.num_heads} query heads, as in Llama-3",
                "zh-CN": f"{full.num_heads} 个查询头共用 {grouped.num_kv_heads} 个键头，如 Llama-3",
            },
            _with_mixers([grouped]),
        ),
        (
            {
                "en": "one latent vector a position, as in DeepSeek-V2",
                "zh-CN": "每个位置只存一个潜在向量，如 DeepSeek-V2",
            },
            _with_mixers([latent]),
        ),
        (
            {
                "en": "a state instead of a cache in three of four layers, as in Qwen3.5",
                "zh-CN": "四层中有三层用状态代替缓存，如 Qwen3.5",
            },
            _with_mixers([delta, delta, delta, full]),
        ),
        (
            {
                "en": f"every other layer looks back {window.window:,} positions, as in gpt-oss",
                "zh-CN": f"每隔一层只看最近 {window.window:,} 个位置，如 gpt-oss",
            },
            _with_mixers([window, full]),
        ),
    ]


def _other_caches() -> list[tuple[dict[str, str], Scenario]]:
    """What the same model can do."""
    narrower = [
        ({"en": f"a cache at {bits} bits", "zh-CN": f"缓存用 {bits} 位"}, CROWDED.model_copy(update={"kv_bits": bits}))
        for bits in (8, 4)
    ]
    half = CROWDED.model_copy(update={"context": CROWDED.context // 2})
    return [*narrower, ({"en": "half the context", "zh-CN": "上下文减半"}, half)]


def _with_mixers(mixers: list[Any]) -> ResolvedModel:
    """The model with these mixers in turn, layer after layer."""
    spec = MANY_HEADS.spec
    kinds = tuple(LayerKind(mixer=mixer, mlp=spec.kinds[0].mlp, norms=spec.kinds[0].norms) for mixer in mixers)
    pattern = tuple(index % len(kinds) for index in range(spec.num_layers))
    changed = spec.model_copy(update={"kinds": kinds, "pattern": pattern})
    return replace(MANY_HEADS, spec=changed, tensors=tuple(model_tensors(changed)))


def _busy() -> dict[str, Any]:
    """A device that its own tool calls fully busy, at several distances from the wall."""
    plan = _plan(resolve_model("qwen3-8b"), load_device_spec("h100"), context=CONTEXT)
    at_wall = plan.step_flop / plan.floor_s / (plan.peak_flop_per_s or 0.0)
    rows = [
        (ms(plan.floor_s / util), f"{util:.2f}", _band(util), percent(util * at_wall)) for util in (1, 0.8, 0.5, 0.2)
    ]
    return {
        **_shown(plan),
        "rows": _rows(rows),
        "step_does": f"{plan.step_flop_per_byte:.2f}",
        "at_wall_from": f"{AT_WALL_FROM_FRAC:.2f}",
        "underfed_below": f"{UNDERFED_BELOW_FRAC:.2f}",
    }


def _band(util: float) -> str:
    return "underfed" if util < UNDERFED_BELOW_FRAC else "approaching" if util < AT_WALL_FROM_FRAC else "at-wall"


if __name__ == "__main__":
    main()

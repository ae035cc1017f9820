"""The problems that a model's step poses: products, fused and unfused, attention at each context, the delta rule."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.errors import ConfigError
from harness.plan.ranks import check_divides, rank_spec, vocab_shares
from harness.specs.ab import AbConfig, Op
from harness.specs.model import ModelSpec
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.product import Product
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem

FUSED = (
    ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"),
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
)  # fmt: skip
"""Products of one input that engines do as one."""
IN_TWO = (("in_proj_qkv", "in_proj_z"), ("in_proj_b", "in_proj_a"))
"""How vLLM does the last of them: shapes that a table for it needs, beside what one product a layer counts."""
ROW_PARALLEL = ("o_proj", "out_proj", "down_proj")
"""Products that are cut along k: the first worker alone adds their bias."""
_Shape = tuple[int, int, bool]
SPARE_PLACES = 64
"""Of an attention's cache behind the context: what a kernel reads there shows in its result."""


@dataclass(frozen=True)
class Calls:
    """How often a token makes a call."""

    fused: int
    """Where products of one input are done as one; 0 for those that are then parts of another."""
    unfused: int
    """Where each is done for itself; 0 for those that are then in parts."""


@dataclass(frozen=True)
class Case:
    """One problem, what the model uses it for, and how often a token needs it."""

    op: Op
    role: str
    problem: LinearProblem | AttentionProblem | DeltaProblem
    calls: Calls
    context: int | None = None

    @property
    def label(self) -> str:
        """As samples and rows name it."""
        p = self.problem
        if isinstance(p, LinearProblem):
            return f"{p.m}x{p.n}x{p.k}{'+bias' if p.bias else ''}"
        if isinstance(p, AttentionProblem):
            return f"{p.m} of {self.context}, {p.num_heads}/{p.num_kv_heads}x{p.head_dim}"
        return f"{p.m}, {p.num_value_heads}/{p.num_key_heads}x{p.key_head_dim}x{p.value_head_dim}"


def cases(spec: ModelSpec, config: AbConfig) -> list[Case]:
    """What the command compares: a worker's problems where several share every layer. ConfigError for a model that has
    no such operation, and for one that can't be shared out."""
    if spec.quantization is not None:
        raise ConfigError(
            f"the weights are in {spec.quantization}: no backend here multiplies with those",
            "give the model as it was before it was quantized",
        )
    workers = config.tensor_parallel
    check_divides(spec, workers)
    share = rank_spec(spec, workers)
    made = {
        "linear": lambda: linear_cases(spec, config.batches, workers),
        "attention": lambda: attention_cases(share, config.contexts, config.chunks),
        "linear-attention": lambda: delta_cases(share, config.chunks),
    }[config.op]()
    if not made:
        kinds = ", ".join(sorted({layer.mixer.kind for layer in spec.layers}))
        raise ConfigError(f"this {spec.model_type} has no {config.op}: its layers are {kinds}", "take another model")
    return made


def linear_cases(spec: ModelSpec, batches: Iterable[int], num_workers: int = 1) -> list[Case]:
    """Every distinct shape once for each batch; calls count the layers and products that share it.

    Of several workers each has the shapes of its share, and calls are the first one's: what others alone have, the rest
    of the vocabulary and products whose bias the first adds, is counted nowhere. Experts have their shapes at one row
    alone: of more each takes those that the router sends it, so nobody knows its rows, or how many experts run.
    """
    return [
        Case("linear", role, LinearProblem(m=m, n=n, k=k, dtype=spec.dtype, bias=bias), calls)
        for m in batches
        for (n, k, bias), (role, calls) in _linear_shapes(spec, num_workers, with_experts=m == 1).items()
    ]


def _linear_shapes(spec: ModelSpec, num_workers: int, *, with_experts: bool) -> dict[_Shape, tuple[str, Calls]]:
    """(what each is for, its calls a token)"""
    calls: dict[_Shape, Calls] = defaultdict(lambda: Calls(0, 0))
    roles: dict[_Shape, dict[str, None]] = defaultdict(dict)

    def add(product: Product, count: int, *, when_fused: bool, when_apart: bool) -> None:
        shape = product.n, product.k, product.bias
        before = calls[shape]
        calls[shape] = Calls(before.fused + count * when_fused, before.unfused + count * when_apart)
        roles[shape][product.name.rpartition(".")[2].removesuffix("_proj")] = None

    for index, kind in enumerate(rank_spec(spec, num_workers).kinds):
        count = spec.pattern.count(index)
        products = [p for p in kind.products(spec.hidden_size) if with_experts or not _is_experts(p)]
        groups = list(_groups(products, FUSED))
        parts = {part for _, group in groups for part in group}
        for product in products:
            add(product, count, when_fused=product not in parts, when_apart=True)
            if num_workers > 1 and product.bias and product.name.endswith(ROW_PARALLEL):
                add(product._replace(bias=False), count, when_fused=False, when_apart=False)
        for whole, _ in groups:
            add(whole, count, when_fused=True, when_apart=False)
        for whole, _ in _groups(products, IN_TWO):
            add(whole, count, when_fused=False, when_apart=False)
    for worker, rows in enumerate(vocab_shares(spec.vocab_size, num_workers)):
        if rows:
            add(Product("lm_head", rows, spec.hidden_size), 1, when_fused=worker == 0, when_apart=worker == 0)
    return {shape: ("/".join(roles[shape]), found) for shape, found in calls.items()}


def _is_experts(product: Product) -> bool:
    return ".experts." in product.name


def left_out(spec: ModelSpec, config: AbConfig) -> tuple[str, ...]:
    """What the model's step does beside the cases of a comparison, though it is of the operation."""
    is_routed = any(_is_experts(product) for kind in spec.kinds for product in kind.products(spec.hidden_size))
    if config.op != "linear" or not is_routed or max(config.batches) == 1:
        return ()
    return ("experts' products are compared at batch 1 alone: of more rows an expert takes those the router sends it",)


def _groups(products: Sequence[Product], joined: Sequence[tuple[str, ...]]) -> Iterator[tuple[Product, list[Product]]]:
    """(one product, the parts it stands for): those of one module that share their input, named as the engine names
    it: qkv, gate_up."""
    by_module: dict[str, dict[str, Product]] = defaultdict(dict)
    for product in products:
        module, _, name = product.name.rpartition(".")
        by_module[module][name] = product
    for module, named in by_module.items():
        for names in joined:
            if all(name in named for name in names):
                parts = [named[name] for name in names]
                short = [name.removesuffix("_proj").removeprefix("in_proj_") for name in names]
                role = ("" if all(len(part) == 1 for part in short) else "_").join(short)
                yield Product(f"{module}.{role}", sum(p.n for p in parts), parts[0].k, parts[0].bias), parts


def attention_cases(spec: ModelSpec, contexts: Iterable[int], chunks: Iterable[int]) -> list[Case]:
    """Each kind of attention at each context, for one new token and for a chunk of a prompt; ConfigError where every
    chunk is longer than every context."""
    contexts, chunks = tuple(contexts), tuple(chunks)
    if min(chunks) > max(contexts):
        raise ConfigError(
            f"a chunk of {min(chunks)} is part of a context, and the largest is {max(contexts)}",
            "take a longer context or a shorter chunk",
        )
    layers = Counter(layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention))
    return [
        Case(
            "attention",
            "decode" if m == 1 else "prefill",
            _attention(mixer, m, context, spec.dtype),
            Calls(count, count),
            context,
        )
        for m in chunks
        for context in contexts
        if m <= context
        for mixer, count in layers.items()
    ]


def _phase(m: int) -> str:
    return "decode" if m == 1 else "prefill"


def _attention(mixer: Attention, m: int, context: int, dtype: str) -> AttentionProblem:
    if mixer.window is not None or mixer.sinks:
        raise ConfigError(
            "this attention has a window or sinks: no backend here does those", "take a model of full attention"
        )
    return AttentionProblem(
        m=m, num_heads=mixer.num_heads, num_kv_heads=mixer.num_kv_heads, head_dim=mixer.head_dim,
        max_context=context + SPARE_PLACES, dtype=dtype,
    )  # fmt: skip


def delta_cases(spec: ModelSpec, chunks: Iterable[int]) -> list[Case]:
    """Each kind of gated delta rule, for one new token and for a chunk of a prompt."""
    layers = Counter(layer.mixer for layer in spec.layers if isinstance(layer.mixer, GatedDelta))
    return [
        Case("linear-attention", _phase(m), _delta(mixer, m, spec.dtype), Calls(count, count))
        for m in chunks
        for mixer, count in layers.items()
    ]


def _delta(mixer: GatedDelta, m: int, dtype: str) -> DeltaProblem:
    return DeltaProblem(
        m=m, num_key_heads=mixer.num_key_heads, num_value_heads=mixer.num_value_heads,
        key_head_dim=mixer.key_head_dim, value_head_dim=mixer.value_head_dim, conv_kernel=mixer.conv_kernel,
        dtype=dtype,
    )  # fmt: skip

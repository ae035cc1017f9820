"""What a backend is: one implementation of one operation, in one file, found by name.

A backend answers four questions. Can it do this problem here (`supports`)? What does it need done once to a layer's
weight (`prepare`)? What will one call move (`read_bytes`)? And: a launch, please (`bind`).

A backend with a tuning space lists it (`tuning`) and takes one of its settings as keyword arguments when it is made;
without them it takes what is usually good. Nothing tunes itself: `harness ab` tries the settings, and a selection table
(`specs.selection`) keeps the best.

`bind` stands where other code has `__call__`. A decode step makes the same calls on the same buffers some hundred
times a second, so everything that does not change is resolved once: the result of `bind` takes no arguments, and a
decode step is a list of such launches. That list is what a CUDA graph captures on a GPU, and what a loop of a few
hundred nanoseconds an entry runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from harness.backends.weights import as_loaded
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem, Parameters

if TYPE_CHECKING:
    from torch import Tensor

    from harness.backends.launch import KernelLaunch
    from harness.backends.scratch import Scratch
    from harness.cpu_pool import CpuPool

Launch = Callable[[], None]
"""Runs one operation on buffers that were fixed when it was bound."""


@dataclass(frozen=True)
class Support:
    """Yes, or why not and what to do about it."""

    ok: bool
    why: str = ""
    mend: str = ""

    @classmethod
    def yes(cls) -> Support:
        return cls(True)

    @classmethod
    def no(cls, why: str, mend: str) -> Support:
        return cls(False, why, mend)


class Threads(Protocol):
    """What CPU kernels run on: our pool, or the threads of the process that we are a guest of."""

    @property
    def handle(self) -> int:
        """Address of the C `cpu_pool`."""

    @property
    def num_threads(self) -> int:
        """That a launch runs on."""

    def close(self) -> None:
        """Nothing is launched any more."""


@dataclass(frozen=True)
class Executor:
    """Where launches run: the device, and on a CPU the threads that play the stream."""

    device: DeviceInfo
    pool: Threads | None = None
    stream: Any | None = None
    """On a GPU: a torch.cuda.Stream, on which everything runs, since a bound launch keeps its stream."""

    def close(self) -> None:
        """Ends the threads."""
        if self.pool is not None:
            self.pool.close()


@dataclass(frozen=True)
class OwnExecutor(Executor):
    """One whose threads are ours alone, and sleep when we say so."""

    pool: CpuPool | None = None


class LinearBackend(Protocol):
    """out = x @ weight^T + bias."""

    name: ClassVar[str]
    """Set by the registry's decorator."""
    contest_legal: ClassVar[bool]
    """Leaves weights as loaded: no re-layout, no conversion, no shadow copy."""
    uses_pool: ClassVar[bool] = False
    """Runs on the executor's pool and not on torch's threads; may be left out. Decode attention chosen by `auto`
    follows: two kinds of threads on the same cores take turns spinning."""
    note: str = ""
    """What it settled on by itself when it was bound last, such as a library's kernel; may be left out."""
    compiles_at_launch: ClassVar[bool] = False
    """Triton's first launch of a kernel compiles it, which `harness backends --build` does ahead; may be left out."""
    counts_calls: ClassVar[bool] = False
    """Its kernel itself counts its launches (`bind_counted`); may be left out."""
    scratch: Scratch
    """Memory that its launches share; may be left out."""

    def __init__(self, executor: Executor) -> None: ...

    @staticmethod
    def supports(problem: LinearProblem, device: DeviceInfo) -> Support: ...

    @staticmethod
    def tuning(problem: LinearProblem, device: DeviceInfo) -> Sequence[Parameters]:
        """Settings worth a trial; none for a backend that has nothing to set."""
        return ()

    def prepare(self, weight: Tensor, bias: Tensor | None, problem: LinearProblem) -> Any:
        """Once a layer; weight is [n, k], bias [n]. Its time and memory are reported apart from the calls'. As loaded,
        unless a backend has a layout of its own."""
        return as_loaded(weight, bias, problem)

    def read_bytes(self, packed: Any, m: int) -> int:
        """Bytes that one call reads from memory, whatever its name promises: all of what `prepare` made, once."""
        num_bytes: int = packed.num_bytes
        return num_bytes

    def kept_bytes(self, packed: Any) -> int:
        """Memory that a layer costs beside the weight as loaded: a copy in another layout, scales."""
        return 0

    def bind(self, x: Tensor, packed: Any, out: Tensor) -> Launch:
        """x is [m, k]; out is [m, n] and may have a row stride above n; both keep their addresses."""

    def bind_counted(self, x: Tensor, packed: Any, out: Tensor, calls: Tensor) -> Launch:
        """The same; calls is one int64 on the device, to which every launch adds one. Only where `counts_calls`."""
        raise NotImplementedError(f"{self.name} does not count")


@dataclass(frozen=True)
class BlockCache:
    """Requests' keys and values in blocks among those of others, as servers keep them; head_dim is contiguous."""

    keys: Tensor
    """[blocks, num_kv_heads, block_size, head_dim]"""
    values: Tensor
    """As the keys, at the same strides."""
    table: Tensor
    """int32: the blocks of the request's places in turn, or of several requests' [requests, blocks]."""


class AttentionBackend(Protocol):
    """Causal attention of m new queries over the filled places of a contiguous cache, scaled by head_dim^-0.5."""

    name: ClassVar[str]
    contest_legal: ClassVar[bool]
    uses_pool: ClassVar[bool] = False
    compiles_at_launch: ClassVar[bool] = False
    takes_blocks: ClassVar[bool] = False
    """Reads a cache in blocks where it lies (`bind_blocks`); the others want it gathered first."""
    takes_requests: ClassVar[bool] = False
    """Reads those of several requests in one launch, which can count itself (`bind_requests`)."""
    scratch: Scratch
    """Memory that its launches share; may be left out."""

    def __init__(self, executor: Executor) -> None: ...

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support: ...

    @staticmethod
    def tuning(problem: AttentionProblem, device: DeviceInfo) -> Sequence[Parameters]:
        """Settings worth a trial; none for a backend that has nothing to set."""
        return ()

    def read_bytes(self, problem: AttentionProblem, context: int) -> int:
        """Bytes of cache that one call reads when `context` places are filled."""

    def bind(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> Launch:
        """q and out are [m, num_heads, head_dim]; the caches are [num_kv_heads, max_context, head_dim].

        `context` is one int64: the filled places, the m new ones included. It is read when the launch runs, since it
        grows with every step while the addresses stay.
        """

    def bind_blocks(
        self, q: Tensor, cache: BlockCache, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> KernelLaunch:
        """The same on a cache in blocks, to be moved from request to request; max_context says nothing here. Only where
        `takes_blocks`."""
        raise NotImplementedError(f"{self.name} takes a contiguous cache")

    def bind_requests(
        self, q: Tensor, cache: BlockCache, contexts: Tensor, out: Tensor, calls: Tensor | None,
        problem: AttentionProblem,
    ) -> Launch:  # fmt: skip
        """One query of each request: q and out [requests, num_heads, head_dim]; contexts int32 [requests], 0 for a
        request that only fills up the batch and gets zeros. calls: as in
        `LinearBackend.bind_counted`, or none. Only where `takes_requests`."""
        raise NotImplementedError(f"{self.name} takes one request")


@dataclass(frozen=True)
class DeltaInputs:
    """What the projections give m tokens; the last dimension is contiguous, rows may have a stride."""

    qkv: Tensor
    """[m, conv_channels]: all query heads, all key heads, all value heads."""
    z: Tensor
    """[m, num_value_heads * value_head_dim]: gates of the output; not read without a norm."""
    b: Tensor
    """[m, num_value_heads]: how far a value is corrected, before the sigmoid."""
    a: Tensor
    """[m, num_value_heads]: how fast the state decays, before softplus."""


@dataclass(frozen=True)
class DeltaWeights:
    """A layer's own weights beside its projections, contiguous."""

    conv: Tensor
    """[conv_channels, conv_kernel], the newest position last."""
    a_log: Tensor
    """float32 [num_value_heads]"""
    dt_bias: Tensor
    """float32 [num_value_heads]"""
    norm: Tensor | None
    """[value_head_dim]; None where the engine does the gated norm itself: out is then the rule's own output."""
    eps: float


@dataclass(frozen=True)
class DeltaState:
    """What a request leaves in a layer, contiguous and changed in place; zeros before the first token."""

    conv: Tensor
    """[conv_kernel - 1, conv_channels]: the inputs of the last positions, the oldest first."""
    recurrent: Tensor
    """float32 [num_value_heads, key_head_dim, value_head_dim]"""


class LinearAttentionBackend(Protocol):
    """The gated delta rule over m new tokens, from the projections' outputs to the input of the last one."""

    name: ClassVar[str]
    contest_legal: ClassVar[bool]
    uses_pool: ClassVar[bool] = False
    compiles_at_launch: ClassVar[bool] = False
    norm_is_optional: ClassVar[bool] = False
    """Takes weights without a norm; may be left out."""

    def __init__(self, executor: Executor) -> None: ...

    @staticmethod
    def supports(problem: DeltaProblem, device: DeviceInfo) -> Support: ...

    @staticmethod
    def tuning(problem: DeltaProblem, device: DeviceInfo) -> Sequence[Parameters]:
        """Settings worth a trial; none for a backend that has nothing to set."""
        return ()

    def read_bytes(self, problem: DeltaProblem) -> int:
        """Bytes of weights and state that one call reads; it writes the state again."""

    def bind(
        self, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor, problem: DeltaProblem
    ) -> Launch:
        """out is [m, num_value_heads * value_head_dim], contiguous."""

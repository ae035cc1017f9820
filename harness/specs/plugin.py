"""What the vLLM plugin did in one process: each path that a layer's calls could take, and how often one was taken."""

from pydantic import NonNegativeInt, PositiveInt

from harness.specs.ab import Op
from harness.specs.base import Frozen
from harness.specs.problem import Parameters

STOCK = "vllm"
"""In the place of a backend's name: vLLM's own path."""
NOT_LISTED = "the table does not list this problem"
"""A reason that is no fault of a backend's."""


class PluginPath(Frozen):
    """One layer at one number of rows under one variant."""

    op: Op
    layer: str
    """vLLM's name of the module: model.layers.0.self_attn.qkv_proj."""
    role: str
    """As the table names it, else the module's last name."""
    variant: int
    """Place of the table in HARNESS_SELECTION; -1: the selection was switched off."""
    m: PositiveInt | None
    """Rows; null: more than any that a table lists for this shape."""
    shape: str
    """As records name it: 1x32x64; mx32x64 of any number of rows."""
    backend: str
    parameters: Parameters = {}
    contest_legal: bool
    """The weight that it reads is as it was loaded."""
    read_bytes: NonNegativeInt | None
    """What one call reads; null of vLLM's own path, and where it grows with the context."""
    reason: str | None = None
    """Why vLLM's own path runs, where it is not that rows are too many; or why nothing comes this way."""
    num_calls: NonNegativeInt = 0
    """Counted when it ran, by the op, or on a card by the kernel itself."""


class PluginReport(Frozen):
    """One process's account."""

    pid: PositiveInt
    tables: tuple[str, ...]
    """Fingerprints, in the order of HARNESS_SELECTION."""
    notes: tuple[str, ...] = ()
    kept_bytes: NonNegativeInt
    """Memory beside what vLLM alone would keep: originals of weights that it packs, backends' own layouts and
    scratch."""
    paths: tuple[PluginPath, ...]
    ops: tuple[Op, ...] = ()
    """Those that some layer has taken on, or may with its first request."""
    is_switchable: bool = True
    """False: captured graphs keep the variant that was active when they were captured."""

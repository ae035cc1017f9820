"""What workers are asked between requests: the counters that lie on their cards, and proof that weights stay as they
were loaded, by hashes of their bytes, before vLLM touches them and at any time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness import vllm_plugin
from harness.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

WORKER = "harness.vllm_plugin.audit.AskedWorker"
HASHES, COLLECT = "harness_parameter_hashes", "harness_collect_counts"
"""The worker's methods, for vLLM's collective_rpc."""


class AskedWorker:
    """Mixed into vLLM's workers (`worker_extension_cls`), each of which answers for its process, between requests."""

    def harness_collect_counts(self) -> None:
        """`Session.collect`."""
        session = vllm_plugin.open_session()
        if session is not None:
            session.collect()

    def harness_parameter_hashes(self) -> dict[str, tuple[str, str]]:
        """`Linears.hashes`; nothing outside contests."""
        session = vllm_plugin.open_session()
        return {} if session is None else session.linears.hashes()


def unchanged(workers: Iterable[Mapping[str, Sequence[str]]]) -> str:
    """How many parameters of how many workers are as they were loaded, by their hashes (before, now) in each.
    MeasurementError names those that are not, and where there is nothing to prove it by."""
    pairs = [(name, before, now) for worker in workers for name, (before, now) in worker.items()]
    changed = sorted({name for name, before, now in pairs if before != now})
    if changed:
        named = ", ".join(changed[:4]) + ", ..." * (len(changed) > 4)
        raise MeasurementError(
            f"{len(changed)} parameters are not as they were loaded: {named}",
            "a kernel writes into its weights: `harness ab linear` names the backend",
        )
    if not pairs:
        raise MeasurementError("no worker has hashes of its parameters", "HARNESS_CONTEST=1 must reach every process")
    return f"{len(pairs)} unchanged"


def tensor_hash(tensor: Tensor) -> str:
    """SHA-256 of type, shape, strides and bytes: a transposed copy is no longer what was loaded."""
    from torch import uint8

    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(uint8)
    data: Any = flat.numpy()
    digest.update(data)
    return digest.hexdigest()

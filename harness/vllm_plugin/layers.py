"""vLLM's linear layers with our method in the place of the unquantized one, where a table lists their shape."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from harness.backends.registry import check_table
from harness.backends.weights import dtype_name
from harness.errors import UnavailableError
from harness.specs.selection import SelectionTable
from harness.specs.tensor import CONFIG_DTYPES
from harness.vllm_plugin import op
from harness.vllm_plugin.audit import tensor_hash
from harness.vllm_plugin.linear import Linear
from harness.vllm_plugin.linears import role_of
from harness.vllm_plugin.machine import open_machine
from harness.vllm_plugin.session import Session
from harness.vllm_plugin.settings import Settings, read_settings

LAYERS = (
    ReplicatedLinear, ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear,
    ParallelLMHead, VocabParallelEmbedding,
)  # fmt: skip

CACHE_KEY = "llm-decode-harness"
"""vLLM's own key for compiled code covers no plugin: the same model without ours would take what was compiled with
it."""


def replace_layers() -> None:
    """From now on vLLM makes ours in their place."""
    for layer in LAYERS:
        _replace(layer)


def _replace(stock: Any) -> None:
    class Selected(stock):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.prefix = getattr(self, "prefix", named.get("prefix", ""))  # 0.18's embeddings do not keep their name
            _select(self)

    Selected.__name__ = Selected.__qualname__ = f"Selected{stock.__name__}"
    stock.register_oot(Selected)


def _select(layer: Any) -> None:
    """Puts our method in, where there is a selection that lists the layer's shape at any number of rows."""
    method = _METHODS.get(type(layer.quant_method))
    session = model_session()
    if session is None or method is None or not _multiplies(layer):
        return
    if session.linears.largest(_rows(layer), layer.weight.shape[1], dtype_name(layer.weight)):
        layer.quant_method = method(layer.quant_method, session)
    elif role_of(layer.prefix) != "conv1d":  # a convolution becomes one after its layer was made
        session.linears.unlisted.add(role_of(layer.prefix))


def _multiplies(layer: Any) -> bool:
    """An embedding does where it is the head as well."""
    if type(layer.quant_method) is UnquantizedLinearMethod or isinstance(layer, ParallelLMHead):
        return True
    config = get_current_vllm_config_or_none()
    return bool(config and getattr(config.model_config.hf_text_config, "tie_word_embeddings", False))


def _rows(layer: Any) -> int:
    """Of the weight, but for those that fill a head up to a multiple of 64."""
    rows: int = getattr(layer, "num_org_embeddings_per_partition", layer.weight.shape[0])
    return rows


def model_session() -> Session | None:
    """The process's, opened by the first layer: then vLLM has settled on a device and a type."""
    settings, session, config = read_settings(), op.current(), get_current_vllm_config_or_none()
    if config is None:
        return session if session is not None and session.settings == settings else None
    if settings is None:
        op.replace(None)
        return None
    if session is None or not session.is_of(settings, config.compilation_config):
        session = _opened(settings, config)
        op.replace(session)
    config.additional_config[CACHE_KEY] = session.compile_key
    return session


def _opened(settings: Settings, config: Any) -> Session:
    tables, machine = settings.load(), open_machine(config.device_config.device_type, settings.report)
    device = machine.executor.device
    dtype = CONFIG_DTYPES[str(config.model_config.dtype).removeprefix("torch.")]
    notes = settings.check(tables, device, dtype, config.parallel_config.tensor_parallel_size)
    for path, table in zip(settings.tables, tables, strict=True):
        check_table(table, path)
    if device.kind != "cpu":
        _settle_gpu(config, tables)
    return Session(
        settings, tables, machine, notes, keeps_prefixes=bool(config.cache_config.enable_prefix_caching),
        captures=device.kind != "cpu" and config.compilation_config.cudagraph_mode.name != "NONE",
        model=config.compilation_config,  # has the model's layers; its parts have configs of their own, and this one
    )  # fmt: skip


def _settle_gpu(config: Any, tables: tuple[SelectionTable, ...]) -> None:
    """Our attention is one of vLLM's choices there, which the model's layers are about to make: a user's stands."""
    if getattr(config.parallel_config, "enable_dbo", False):
        raise UnavailableError(
            "dual-batch overlap runs a step in two threads, and our launches are one thread's",
            "leave out --enable-dbo, or unset HARNESS_SELECTION",
        )
    attends = any(entry.op == "attention" for table in tables for entry in table.entries)
    if attends and config.attention_config.backend is None:
        config.attention_config.backend = AttentionBackendEnum.CUSTOM


class _Selected:
    """What both of our methods are: vLLM's own, with the products that a table lists on other ways."""

    def __init__(self, stock: Any, session: Session) -> None:
        self._stock, self._session, self._is_known = stock, session, False

    def process_weights_after_loading(self, layer: Any) -> None:
        """As vLLM does it, but the weight stays where it was. In a contest it is not packed at all: then there is one
        copy, as it was loaded."""
        weight, bias = layer.weight, _bias(layer)
        tensors = {"weight": weight.detach()} | ({} if bias is None else {"bias": bias})
        hashes = (
            {name: tensor_hash(tensor) for name, tensor in tensors.items()} if self._session.settings.contest else {}
        )
        if self._session.settings.contest and weight.device.type == "cpu":  # on a GPU vLLM packs nothing
            layer.cpu_linear = nn.functional.linear
        else:
            self._stock.process_weights_after_loading(layer)
        was_removed = layer.weight is not weight
        layer.weight = weight
        if weight.ndim == 2:  # a convolution's is not: it becomes one after its layer was made
            rows = _rows(layer)
            self._session.linears.add(Linear(
                name=layer.prefix, weight=tensors["weight"], bias=bias, n=rows,
                stock=lambda x, bias: self._stock.apply(layer, x, bias),
                packed_by_vllm=_is_packed(layer),
                kept_bytes=weight.nbytes if was_removed else 0,
                largest=self._session.linears.largest(rows, weight.shape[1], dtype_name(weight)), hashes=hashes,
            ))  # fmt: skip
            self._is_known = True

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., k] -> [..., n]"""
        if not self._is_known:
            product: Tensor = self._stock.apply(layer, x, bias)
        else:
            product = op.selected_linear(x, layer.weight, bias)
        return product


class SelectedLinearMethod(_Selected, UnquantizedLinearMethod):  # type: ignore[misc]
    """Of the layers inside the model."""


class SelectedEmbeddingMethod(_Selected, UnquantizedEmbeddingMethod):  # type: ignore[misc]
    """Of a head, and of an embedding that is one too."""


_METHODS = {UnquantizedLinearMethod: SelectedLinearMethod, UnquantizedEmbeddingMethod: SelectedEmbeddingMethod}


def _is_packed(layer: Any) -> bool:
    """vLLM keeps a packed copy in the closure that multiplies with it; a product with the weight itself has none."""
    return getattr(getattr(layer, "cpu_linear", None), "__closure__", None) is not None


def _bias(layer: Any) -> Tensor | None:
    """What the layer's own forward adds in the product, as it was loaded: vLLM widens some."""
    bias = getattr(layer, "bias", None)
    added_elsewhere = getattr(layer, "skip_bias_add", False)
    added_by_another = isinstance(layer, RowParallelLinear) and layer.tp_rank > 0
    return None if bias is None or added_elsewhere or added_by_another else bias.detach()

"""vLLM's settings as far as they matter to a run: the same for vLLM in this process and for a server of it."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, NonNegativeInt, field_validator, model_validator

from harness.specs.base import Count, Frozen, Magnitude, Number
from harness.specs.client import ClientOptions
from harness.specs.environment import SECRET_WORDS, is_secret_field
from harness.specs.tensor import CONFIG_DTYPES

GraphMode = Literal["eager", "compiled", "piecewise", "full", "full-decode-only", "full-and-piecewise"]

# Field here -> argument of vLLM's EngineArgs.
_ARGUMENTS = {
    "dtype": "dtype",
    "load_format": "load_format",
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "attention_backend": "attention_backend",
    "async_scheduling": "async_scheduling",
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "executor": "distributed_executor_backend",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_bytes": "kv_cache_memory_bytes",
    "seed": "seed",
}
_TYPED = {argument: field for field, argument in _ARGUMENTS.items()}
_TYPED |= {"enforce_eager": "graph", "cudagraph_mode": "graph", "model": "the run's model"}
_TYPED |= {"api_key": "api_key_env, of the kind openai and a server that you start"}
_TYPED |= dict.fromkeys(("host", "port", "served_model_name"), "url and served_model of the kind openai")
_CHANGES_BYTES = ("quantization", "quantization_config", "kv_cache_dtype", "speculative_config", "hf_overrides")


class VllmOptions(Frozen):
    """What is null is left to vLLM, and the record has what it settled on (`resolved`)."""

    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Null: as config.json says; never vLLM's own `auto`, which halves float32."""
    load_format: Annotated[str, Field(min_length=1)] = "auto"
    """auto: the weights in the model's folder; dummy: random ones of its shapes, the speed of the real ones, no
    meaning; or another of vLLM's names."""
    max_model_len: Count | None = None
    """Positions of a request. Null: in this process as many as the workload takes, in a server the model's own."""
    max_num_batched_tokens: Count | None = None
    """Tokens that a step takes in at most: a longer prompt is cut into chunks."""
    max_num_seqs: Count | None = None
    """Requests that are decoded together at most. Null: in this process the workload's largest batch."""
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool | None = None
    attention_backend: Annotated[str, Field(min_length=1)] | None = None
    """One of vLLM's names: FLASH_ATTN, TRITON_ATTN, FLASHINFER, ROCM_ATTN, CUSTOM, ... A CPU always takes CPU_ATTN."""
    graph: GraphMode | None = None
    """eager: neither compiled nor captured; compiled: compiled, no graphs; the others are vLLM's modes of CUDA graphs,
    of compiled code."""
    async_scheduling: bool | None = None
    """The next step is scheduled while this one runs; a request then can't be paused for the probe."""
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    executor: Literal["mp", "uni", "ray", "external_launcher"] | None = None
    """Who runs the workers: processes, this process alone, ray, or the launcher that started it (torchrun)."""
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Share of the device's memory that vLLM may take, on a CPU of the machine's."""
    kv_cache_bytes: Count | None = None
    """Size of the cache; overrules the share above. Null: what that leaves; in this process on a CPU, where it isn't
    given either, twice what the workload takes, at least 1 GiB."""
    seed: NonNegativeInt = 0
    selection: Annotated[str, Field(min_length=1)] | None = None
    """A table of winners that `harness ab ... --save` wrote, for vLLM's layers; several with `:` between are
    variants, of which the first is taken. Of as many workers as tensor_parallel (`--tensor-parallel`).
    HARNESS_SELECTION_FORCE=1 in `environment` takes a table of another number, device or software."""
    extra_args: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], JsonValue] = {}
    """Further arguments, as vLLM's EngineArgs names them. Not those that a field above sets, and none that changes what
    a step reads, since its bytes would be counted wrongly."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    """Variables that are set before vLLM is imported; they go before the harness's own choice, and that of the shell.
    Quote numbers."""

    @field_validator("extra_args")
    @classmethod
    def _left_to_us(cls, extra_args: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in extra_args:
            if name not in _TYPED and is_secret_field(name):
                raise ValueError(
                    f"{name} may be a secret, and the record keeps this file: set its variable in the shell"
                )
            if name in _TYPED:
                raise ValueError(f"{name} has a place of its own: set {_TYPED[name]}")
            if name in _CHANGES_BYTES:
                raise ValueError(f"{name} changes what a step reads, and this version would count it wrongly")
        return extra_args

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, environment: dict[str, str]) -> dict[str, str]:
        """A run's configuration is kept in its record."""
        secret = [name for name in environment if any(word in name.upper() for word in SECRET_WORDS)]
        if secret:
            raise ValueError(f"{secret[0]} may be a secret, and the record keeps this file: set it in the shell")
        return environment

    @model_validator(mode="after")
    def _one_selection(self) -> "VllmOptions":
        ours = [name for name in ("HARNESS_SELECTION", "HARNESS_PLUGIN_REPORT") if name in self.environment]
        if self.selection is not None and ours:
            raise ValueError(f"{ours[0]} is the harness's own beside engine.selection: leave one of them out")
        return self

    @model_validator(mode="after")
    def _our_worker(self) -> "VllmOptions":
        if self.selection is not None and "worker_extension_cls" in self.extra_args:
            raise ValueError("worker_extension_cls is the harness's own with a selection: leave one of them out")
        return self

    @model_validator(mode="after")
    def _one_graph_mode(self) -> "VllmOptions":
        if self.graph is not None and "compilation_config" in self.extra_args:
            raise ValueError("graph and extra_args.compilation_config set the same: give one of them")
        return self

    @property
    def world_size(self) -> int:
        """Workers that share a request."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def is_on_one_machine(self) -> bool:
        """Known to be; ray's workers may be anywhere."""
        return self.executor != "ray" and self.extra_args.get("nnodes", 1) == 1

    def held_dtype(self, model_dtype: str) -> str:
        """What weights and cache are kept in, for a model of that type; both by safetensors names."""
        return CONFIG_DTYPES[self.dtype] if self.dtype else model_dtype

    def arguments(self, model_dtype: str) -> dict[str, JsonValue]:
        """Arguments of vLLM's EngineArgs, all but the model. model_dtype: its own, by safetensors' name."""
        names = {theirs: ours for ours, theirs in CONFIG_DTYPES.items()}
        given = {name: getattr(self, field) for field, name in _ARGUMENTS.items()}
        given["dtype"] = names[self.held_dtype(model_dtype)]
        return {name: value for name, value in given.items() if value is not None} | self._graph | self.extra_args

    @property
    def _graph(self) -> dict[str, JsonValue]:
        if self.graph is None:
            return {}
        if self.graph == "eager":
            return {"enforce_eager": True}
        mode = "NONE" if self.graph == "compiled" else self.graph.upper().replace("-", "_")
        return {"compilation_config": {"cudagraph_mode": mode}}


class VllmEngine(VllmOptions):
    """vLLM in this process, step by step."""

    kind: Literal["vllm"]

    @field_validator("environment")
    @classmethod
    def _in_this_process(cls, environment: dict[str, str]) -> dict[str, str]:
        if "LD_PRELOAD" in environment:
            raise ValueError("LD_PRELOAD acts on what starts later: set it in front of the harness")
        if environment.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0") != "0":
            raise ValueError("VLLM_ENABLE_V1_MULTIPROCESSING moves the engine out of this process: take vllm-server")
        return environment


class VllmServerEngine(VllmOptions, ClientOptions):
    """vLLM as a server of this machine, which the harness starts, asks and ends."""

    kind: Literal["vllm-server"]
    python: Annotated[str, Field(min_length=1)] | None = None
    """The Python that has vLLM; null: the harness's own."""
    device: Literal["none", "auto", "cpu", "cuda"] = "auto"
    """Whose memory is probed; none: no roof."""
    start_limit_s: Magnitude = 1800.0
    """From its start until it answers: loading, compiling and capturing."""

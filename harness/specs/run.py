"""The configuration of one run: `configs/runs/*.yaml`. Every default stands here once."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, model_validator

from harness.specs.base import Count, Frozen, Magnitude, Number, Share
from harness.specs.client import ClientOptions
from harness.specs.sweep import Sweep
from harness.specs.vllm import VllmEngine, VllmServerEngine


class Workload(Frozen):
    """The request and how often it is made."""

    prompts: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Texts; repeats take them in turn. Distinct prompts keep a prefix cache from flattering later repeats."""
    input_tokens: Count | None = None
    """Instead of prompts: random token ids, drawn anew for each repeat."""
    output_tokens: Count = 256
    """Exactly so many with fixed-length, at most so many with natural-stop."""
    mode: Literal["fixed-length", "natural-stop"] = "fixed-length"
    """fixed-length ignores the end token; natural-stop ends where the model does."""
    repeats: Annotated[Count, Field(le=1000)] = 5
    warmup_tokens: Count = 16
    """Output tokens of the warm-up request, whose prompt no repeat uses."""
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _one_source(self) -> "Workload":
        if (self.prompts is None) == (self.input_tokens is None):
            raise ValueError("give exactly one of prompts and input_tokens")
        if self.prompts is not None and not self.prompts:
            raise ValueError("prompts is empty: give one or more texts, or input_tokens instead")
        return self


class NativeEngine(Frozen):
    """The harness's own decoder: Llama, Qwen2, Qwen3, Qwen3-MoE, Qwen3.5."""

    kind: Literal["native"]
    weights: Literal["checkpoint", "synthetic"] = "checkpoint"
    """synthetic: random weights of the model's shapes, seeded; the speed of the real ones, no meaning."""
    seed: NonNegativeInt = 0
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Null: as config.json says."""
    device: str = "auto"
    """auto, cpu or cuda."""
    threads: Count | None = None
    """CPU: null takes one for each physical core this process may use."""
    linear: str = "auto"
    """Backend of the decode step's linears: a name from `harness backends`, or auto."""
    attention: str = "auto"
    """Backend of the decode step's attention: a name from `harness backends`, or auto."""
    linear_attention: str = "auto"
    """Backend of the decode step's gated delta rule: a name from `harness backends`, or auto."""
    prefill_linear: str = "auto"
    prefill_attention: str = "auto"
    prefill_linear_attention: str = "auto"
    selection: Annotated[str, Field(min_length=1)] | None = None
    """A table of winners that `harness ab ... --save` wrote: it decides wherever the setting above is auto."""
    selection_force: bool = False
    """Take a table of another device, type or software all the same; the record says so."""
    elementwise: str = "auto"
    """Norms, rotary embedding, activations and cache write: torch, cpu, triton or auto, which never takes triton."""
    fuse: bool = True
    """Query, key and value as one product, gate and up as one: fewer, larger reads."""
    graph: bool = True
    """GPU: the decode step is captured as one graph; without, the host launches each kernel. A CPU has no graph."""
    prefill_chunk: Count = 512
    """Prompt tokens a prefill step takes."""


class ScriptedEngine(Frozen):
    """No model at all: scripted step times and probe readings with a known truth, for tests and for trying the CLI."""

    kind: Literal["scripted"]
    util_frac: Magnitude = 0.8
    """True utilization: floor over step time."""
    bandwidth_bytes_per_s: Magnitude = 25e9
    bandwidth_drift_frac: Annotated[Number, Field(gt=-0.95, le=100)] = 0.0
    """Change of the machine's bandwidth, for probe and steps alike, from the run's first second to its last."""
    bandwidth_wave_frac: Annotated[Number, Field(ge=0, le=0.9)] = 0.0
    """The bandwidth also swings by so much around that line, as memory shared with neighbours does."""
    bandwidth_wave_s: Magnitude = 20.0
    """Length of one swing."""
    step_noise_frac: Share = 0.0
    """Standard deviation of the logarithm of a step's time."""
    probe_noise_frac: Share = 0.0
    probe_frac: Magnitude = 1.0
    """What the probe reads of the true bandwidth; below 1 the engine's kernels outrun it, as real ones may."""
    repeat_noise_frac: Share = 0.0
    """Noise that a whole repeat shares: what the interval over repeats must cover."""
    gap_s: Annotated[Number, Field(ge=0, le=1e6)] = 0.0
    """Idle time inside each step, as launches or a synchronizing host leave it; comes on top of util_frac."""
    kv_util_frac: Magnitude | None = None
    """The cache is read at this fraction of the roof, the weights at util_frac."""
    cache_bytes: Count = 1 << 20
    """Last-level cache of the scripted device."""
    peak_flop_per_s: Magnitude = 1e12
    stop_after: Count | None = None
    """Ends the answer early in spite of fixed-length, as some servers do."""
    explains: bool = True
    """Whether the engine can say where a step's time goes."""
    seed: NonNegativeInt = 0


class OpenAIEngine(ClientOptions):
    """A server that runs already and speaks OpenAI's API: vLLM, SGLang, llama.cpp, a provider."""

    kind: Literal["openai"]
    url: Annotated[str, Field(min_length=1)]
    """As far as the version: http://127.0.0.1:8000/v1."""
    served_model: Annotated[str, Field(min_length=1)] | None = None
    """Its name there; null where the server lists only one."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The environment variable that holds the key; the key itself is written nowhere."""
    device: Literal["none", "auto", "cpu", "cuda"] = "none"
    """This machine's device that the server computes on, whose memory is probed; none: it is another machine, and no
    roof is known."""


class ProbeConfig(Frozen):
    """How the roof is measured."""

    buffer_bytes: Count | None = None
    """Null: four times the last-level cache, as far as memory allows."""
    survey_s: Magnitude = 8.0
    """Time for the sweep over readers, copy, write and the thread curve."""
    reading_s: Magnitude = 0.4
    """Length of one reading, around a request or in its pauses."""
    every_s: Magnitude | None = 2.0
    """An engine that can wait pauses its request for a reading after the first token and then this often; no figure
    contains that time. Null: never."""


class Profile(Frozen):
    """A trace of a prompt's first chunk and of a few decode steps, taken behind the repeats: in no figure's time."""

    decode_steps: Count = 8
    first_step: NonNegativeInt | None = None
    """How many steps of the answer come before them; null: its middle."""


class Gate(Frozen):
    """What the run must reach; a miss ends with exit code 1."""

    min_util_frac: Magnitude | None = None
    max_ttft_s: Magnitude | None = None
    max_tpot_s: Magnitude | None = None
    min_throughput_tokens_per_s: Magnitude | None = None


class RunConfig(Frozen):
    """One run of `harness bench`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=64)]
    """Becomes part of the run folder's name."""
    model: Annotated[str, Field(min_length=1)]
    """A known name (configs/models), a folder with a config.json, or a config.json."""
    engine: Annotated[
        NativeEngine | ScriptedEngine | OpenAIEngine | VllmEngine | VllmServerEngine, Field(discriminator="kind")
    ]
    workload: Workload
    probe: ProbeConfig = ProbeConfig()
    gate: Gate = Gate()
    profile: Profile | None = None
    """Null: no trace is taken."""
    sweep: Sweep | None = None
    """Several values of one thing in one run; null: the workload as it is."""

    @model_validator(mode="after")
    def _sweeps_over_token_ids(self) -> "RunConfig":
        if self.sweep is not None and self.workload.input_tokens is None:
            raise ValueError("a sweep needs workload.input_tokens: texts have the length they have")
        if self.sweep is not None and self.profile is not None:
            raise ValueError("a sweep takes no trace: it would be of one value of many")
        if self.sweep is not None and self.gate != Gate():
            raise ValueError("a sweep has no gate: its figures are of several workloads")
        return self

    @property
    def longest_prompt(self) -> int:
        """Of prompts given as a length."""
        lengths = self.sweep.values if self.sweep is not None and self.sweep.over != "batch" else ()
        return max(lengths or (self.workload.input_tokens or 1,))

    @property
    def largest_batch(self) -> int:
        return max(self.sweep.values) if self.sweep is not None and self.sweep.over == "batch" else 1

"""vLLM's engine, stepped by us: a request's tokens as each step yields them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.profiler import record_function
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.sampling_params import RequestOutputKind

from harness.engines.base import DECODE_TRACE, PREFILL_TRACE, Engine
from harness.engines.native.tracing import traced
from harness.engines.text import TextStream, request_ids
from harness.engines.vllm_inproc.resolved import Resolved, resolved_layers, resolved_settings
from harness.engines.vllm_inproc.threads import bind_openmp_threads, on_core, openmp_runtime
from harness.errors import ConfigError, MeasurementError, UnavailableError
from harness.models import ResolvedModel
from harness.specs.engine import EngineReport, Evidence
from harness.specs.event import KernelReadEvent, Usage
from harness.specs.probe import ProbeReading
from harness.specs.request import Chunk, Request
from harness.specs.tensor import CONFIG_DTYPES
from harness.specs.trace import DECODE_MARK, PREFILL_MARK, prefill_mark
from harness.vllm_plugin import close_session
from harness.vllm_plugin.audit import HASHES
from harness.vllm_plugin.variant import Variant

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class VllmDecoding(Engine):
    """One request at a time, or a batch of one length that is decoded together."""

    can_skip_prompt: ClassVar[bool] = False

    def __init__(
        self, llm: LLM, model: ResolvedModel, tokenizer: Tokenizer | None, cores: Sequence[int] | None, load_s: float,
        variant: Variant, has_audit: bool, notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """cores: where this process's threads stay, if it is they that compute on a CPU; None: anywhere. has_audit:
        its workers can hash their parameters."""
        self._variant, self._has_audit = variant, has_audit
        self._llm, self._model, self._tokenizer = llm, model, tokenizer
        self._load_s, self._notes, self._num_requests = load_s, notes, 0
        self._engine = llm.llm_engine
        self._resolved = self._resolve()
        self._core = self._bind(cores)

    def _resolve(self) -> Resolved:
        """Layers are seen where they are in this process."""
        config = self._engine.vllm_config
        resolved = resolved_settings(config)
        if resolved["executor"] == "uni":
            layers = config.compilation_config.static_forward_context
            (found,) = self._llm.apply_model(lambda module: resolved_layers(layers, module))
            resolved |= found
        return resolved

    @property
    def _is_here(self) -> bool:
        """This process's own threads compute."""
        return self._resolved["executor"] == "uni" and self._resolved["device"] == "cpu"

    def _bind(self, cores: Sequence[int] | None) -> int | None:
        """The calling thread's core, where it stays while it steps."""
        if not self._is_here:
            return None
        self._resolved["openmp_runtime"] = openmp_runtime()
        self._resolved["bound_cores"] = None if cores is None else ",".join(map(str, cores))
        if cores is None:
            return None
        bind_openmp_threads(cores)
        return cores[0]

    @property
    def can_pause(self) -> bool:
        """Worker processes spin while they wait, and a step that is scheduled ahead runs already."""
        return self._resolved["executor"] == "uni" and not self._resolved["async_scheduling"]

    def clock_s(self) -> float:
        return time.perf_counter()

    def num_prompt_tokens(self, request: Request) -> int:
        return len(request_ids(request, self._tokenizer, self._model.name)[0])

    def prepare(self, request: Request) -> None:
        self._variant.take()

    def generate(self, request: Request) -> Iterator[Chunk]:
        """Greedy; without ignore_eos it ends with the first prompt's end token, whose answer is also the text."""
        text, num_tokens, num_prompt_tokens = TextStream(self._tokenizer), 0, self.num_prompt_tokens(request)
        with on_core(self._core):
            running = self._add(request)
            try:
                while running[0] is not None:
                    outputs = self._step(running)
                    time_s = time.perf_counter()
                    if not outputs:
                        continue  # a prompt is taken in by chunks
                    tokens = tuple(token for output in outputs for token in output.outputs[0].token_ids)
                    num_tokens += len(tokens) // len(running)
                    cached = sum(output.num_cached_tokens or 0 for output in outputs)
                    usage = Usage(prompt_tokens=num_prompt_tokens, output_tokens=num_tokens, cached_tokens=cached)
                    yield Chunk(
                        time_s, tokens, text.piece(tokens[0]), usage=usage if running[0] is None else None,
                        finish_reason=outputs[0].outputs[0].finish_reason,
                    )  # fmt: skip
            finally:
                self._variant.answered(max(0, num_tokens - 1))
                self._engine.abort_request([name for name in running if name is not None])

    def _add(self, request: Request) -> list[str | None]:
        """Names of the batch's requests; None takes the place of one that has ended."""
        names: list[str | None] = []
        for ids in request_ids(request, self._tokenizer, self._model.name):
            self._check_fits(len(ids) + request.max_output_tokens)
            sampling = self._sampling(request, ends_itself=not request.ignore_eos and not names)
            names.append(f"request-{self._num_requests}")
            self._num_requests += 1
            self._engine.add_request(str(names[-1]), {"prompt_token_ids": list(ids)}, sampling)
        return names

    def _sampling(self, request: Request, ends_itself: bool) -> SamplingParams:
        """vLLM reads the end tokens from the model's folder. No min_tokens: it would forbid the end token, which a
        fixed length only ignores."""
        return SamplingParams(
            temperature=0, max_tokens=request.max_output_tokens, ignore_eos=not ends_itself, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip

    def _check_fits(self, num_places: int) -> None:
        """vLLM would end the answer early."""
        limit = self._engine.vllm_config.model_config.max_model_len
        if num_places > limit:
            raise ConfigError(f"a request of {num_places} positions, max_model_len is {limit}", "raise it")

    def _step(self, running: list[str | None]) -> list[Any]:
        """vLLM's outputs for the prompts of the batch, in their order; who has ended leaves `running`."""
        by_name = {output.request_id: output for output in self._stepped()}
        outputs = [by_name[name] for name in running if name in by_name]
        if outputs and len(outputs) != len(running):
            raise MeasurementError(
                f"a step yielded tokens for {len(outputs)} of {len(running)} prompts, which did not start together",
                "raise engine.max_num_batched_tokens to all their tokens, and max_num_seqs to the batch",
            )
        for place, name in enumerate(running):
            if name in by_name and by_name[name].finished:
                running[place] = None
        return outputs

    def _stepped(self) -> list[Any]:
        try:
            return list(self._engine.step())
        except Exception as fault:  # kernels raise whatever they like
            reason = str(fault).partition("\n")[0] or type(fault).__name__
            raise UnavailableError(
                f"vLLM {self._resolved['version']} failed in a step: {reason}",
                "it may not run this model on this device: --debug shows where",
            ) from fault

    def kernel_reads(self, read_probe: Callable[[], ProbeReading]) -> Iterator[KernelReadEvent]:
        """None: vLLM's products are not called one by one."""
        return iter(())

    def explain(self, request: Request, num_steps: int) -> Evidence:
        """Nothing: that needs a trace."""
        return Evidence()

    def trace(self, request: Request, num_steps: int, folder: Path, first_step: int | None = None) -> None:
        """Steps come whatever the model says. UnavailableError where workers compute: they are other processes."""
        if self._resolved["executor"] != "uni":
            raise UnavailableError(
                "vLLM's workers are processes of their own, and are not traced from here",
                "leave executor and the parallel sizes as they are, or profile by vLLM's own profiler_config",
            )
        on_gpu = self._resolved["device"] != "cpu"
        num_marked = min(num_steps + 1, request.max_output_tokens - 1)
        num_before = min(
            request.max_output_tokens // 2 if first_step is None else first_step,
            request.max_output_tokens - 1 - num_marked,
        )
        prompts = request_ids(request, self._tokenizer, self._model.name)
        # A batch's prompts share steps: which positions are taken in by which, no mark could say.
        mark = prefill_mark(0, len(prompts[0])) if len(prompts) == 1 else PREFILL_MARK
        self._llm.reset_prefix_cache()  # else a prompt that was seen before is not taken in
        with on_core(self._core):
            running = self._add(replace(request, ignore_eos=True))
            try:
                with traced(folder / PREFILL_TRACE, on_gpu), record_function(mark):
                    while not self._step(running):
                        pass
                for _ in range(num_before):
                    self._step(running)
                with traced(folder / DECODE_TRACE, on_gpu):
                    for _ in range(num_marked):
                        with record_function(DECODE_MARK):
                            self._step(running)
                self._variant.answered(num_before + num_marked)
            finally:
                self._engine.abort_request([name for name in running if name is not None])

    def audit(self) -> None:
        if self._has_audit:
            self._variant.audit(self._llm.collective_rpc(HASHES))

    def report(self) -> EngineReport:
        plain = EngineReport(
            kind="vllm",
            dtype=CONFIG_DTYPES[str(self._resolved["dtype"])],
            num_threads=torch.get_num_threads() if self._is_here else None,
            graph=str(self._resolved["cudagraph_mode"]).startswith("FULL"),
            resolved=self._resolved,
            load_s=self._load_s,
            notes=self._notes,
        )
        return self._variant.completed(plain)

    def close(self) -> None:
        """Ends workers and frees memory, so that another engine can be opened in this process; a second variant of the
        same vLLM ends with it."""
        self._engine.engine_core.shutdown()
        self._variant.close()
        del self._llm, self._engine
        close_session()
        cleanup_dist_env_and_memory()

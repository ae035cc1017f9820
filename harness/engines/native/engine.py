"""The native engine: one request at a time, one token after another, each stamped when the host has it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.profiler import record_function

from harness.backends.base import Launch, OwnExecutor
from harness.engines.base import CALLS_PER_TRIAL, DECODE_TRACE, PREFILL_TRACE, Engine, side_by_side
from harness.engines.native.decoder import Decoder, Step
from harness.engines.native.ops import OpTable
from harness.engines.native.tracing import run_marked, traced
from harness.engines.native.verify import check_linears
from harness.engines.text import TextStream, request_ids
from harness.errors import ConfigError
from harness.models import ResolvedModel
from harness.specs.engine import EngineReport, Evidence, LaunchClass
from harness.specs.event import KernelReadEvent
from harness.specs.probe import ProbeReading
from harness.specs.request import Chunk, Request
from harness.specs.trace import DECODE_MARK, prefill_mark

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WARMUP_TOKENS = 2


class NativeDecoding(Engine):
    """A loaded model that answers one request at a time."""

    can_pause: ClassVar[bool] = True
    can_skip_prompt: ClassVar[bool] = True

    def __init__(
        self, decoder: Decoder, ops: OpTable, executor: OwnExecutor, model: ResolvedModel,
        tokenizer: Tokenizer | None, load_s: float, graph: bool = True, notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._decoder, self._ops, self._executor = decoder, ops, executor
        self._model, self._tokenizer, self._load_s, self._notes = model, tokenizer, load_s, notes
        self._has_graph = graph and executor.device.kind != "cpu"
        self._decodes: dict[int, Launch] = {}
        self._decode_launch(1)
        self._read_tokens = self._token_reader()

    def _decode_launch(self, batch: int) -> Launch:
        """The decode step of so many requests, made when first asked for."""
        if batch not in self._decodes:
            self._decodes[batch] = self._launch_of(self._decoder.decode_step(batch))
        return self._decodes[batch]

    def _launch_of(self, step: Step) -> Launch:
        """One decode step: the list itself on a CPU, its captured graph on a GPU."""
        if not self._has_graph:
            return step.run
        torch.cuda.synchronize()  # weights were loaded on another stream
        with torch.cuda.stream(self._executor.stream):
            step.run()  # compilations and library handles happen outside the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._executor.stream):
            step.run()
        replay: Launch = graph.replay
        return replay

    def _token_reader(self) -> Callable[[int], tuple[int, ...]]:
        """How the host gets the chosen tokens of a batch: on a GPU by waiting for them; on a CPU from memory.

        On a CPU a call into torch here would find its code gone from the caches, which a step has just swept.
        """
        token = self._decoder.token
        if self._executor.device.kind != "cpu":
            return lambda batch: tuple(token[:batch].tolist())
        shared = token.numpy()
        return lambda batch: tuple(shared[:batch].tolist())

    def clock_s(self) -> float:
        return time.perf_counter()

    def num_prompt_tokens(self, request: Request) -> int:
        return len(self._ids(request)[0])

    def _ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        return request_ids(request, self._tokenizer, self._model.name)

    def generate(self, request: Request) -> Iterator[Chunk]:
        """Prefill, then a step a token. Greedy; without ignore_eos it ends with the first prompt's end token, whose
        answer is also the text."""
        prompts = self._ids(request)
        self._check_fits(len(prompts), len(prompts[0]) + request.max_output_tokens)
        text, decode = TextStream(self._tokenizer), self._decode_launch(len(prompts))
        stop = () if request.ignore_eos else self._model.spec.eos_token_ids
        with self._undisturbed():
            self._take_in(prompts, request.skip_prompt)
            for index in range(request.max_output_tokens):
                if index or request.skip_prompt:
                    decode()
                tokens = self._read_tokens(len(prompts))
                yield Chunk(time.perf_counter(), tokens, text.piece(tokens[0]))
                if tokens[0] in stop:
                    return

    def _take_in(self, prompts: tuple[tuple[int, ...], ...], skip: bool) -> None:
        """The prompts, or all but their last token as if they had been: the first step then takes that one in."""
        if skip:
            self._decoder.pretend(len(prompts), len(prompts[0]) - 1)
        else:
            self._decoder.prefill(prompts)

    def _check_fits(self, batch: int, num_places: int) -> None:
        """A kernel writes where the context says: past the cache is somebody else's memory."""
        room = self._decoder.workspace
        if num_places > room.max_context or batch > room.batch:
            raise ConfigError(
                f"{batch} requests of {num_places} positions, there are caches for {room.batch} of {room.max_context}",
                "ask for no more than the run's workload says",
            )

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """No garbage collection in the timed region; on a CPU the launching thread keeps its core, on a GPU all goes to
        the executor's stream."""
        pool, stream = self._executor.pool, self._executor.stream
        collects = gc.isenabled()
        gc.disable()
        try:
            on_stream = contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
            with pool.pinned() if pool is not None else contextlib.nullcontext(), on_stream, torch.inference_mode():
                yield
        finally:
            if collects:
                gc.enable()

    def last_logits(self) -> list[float]:
        """Of the first request's last token."""
        return [float(value) for value in self._decoder.logits[0].float().tolist()]

    def kernel_reads(self, read_probe: Callable[[], ProbeReading]) -> Iterator[KernelReadEvent]:
        """All linears of a decode step, one after another, beside probe readings: the step's own reads, nothing else.

        They cover the whole model, as a step does: one weight alone could come from a large cache. Their outputs are
        checked first, so that a kernel that skips bytes can't raise the roof.
        """
        step = self._decoder.decode_step()
        linears = [bound for bound in step.launches if bound.kind == "linear"]
        own = [row for row in self._ops.choices() if row.op == "linear" and row.phase == "decode" and row.batch == 1]
        names = "+".join(sorted({row.backend for row in own}))
        with self._undisturbed():
            check_linears(self._decoder, self._ops)
        read_bytes = sum(bound.read_bytes(0) for bound in linears)
        runs = [bound.run for bound in linears]

        def read_calls() -> tuple[float, ...]:
            """Timed calls after an untimed one, as the probe's passes are."""
            with self._undisturbed():
                self._timed(runs)
                return tuple(self._timed(runs) for _ in range(CALLS_PER_TRIAL))

        for calls_s, reading in side_by_side(read_calls, read_probe):
            yield KernelReadEvent(kernel=names, read_bytes=read_bytes, calls_s=calls_s, reading=reading)

    def _timed(self, launches: list[Launch]) -> float:
        self._synchronize()
        started = time.perf_counter()
        for launch in launches:
            launch()
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> None:
        if self._executor.device.kind != "cpu":
            torch.cuda.synchronize()

    def explain(self, request: Request, num_steps: int) -> Evidence:
        """A few decode steps with a clock around each launch; on a GPU launches return early, so that needs a trace."""
        if self._executor.device.kind != "cpu":
            return Evidence()
        prompts = self._ids(request)
        launches = self._decoder.decode_step(len(prompts)).launches
        spent_s: dict[str, float] = defaultdict(float)
        clock = time.perf_counter
        with self._undisturbed():
            context = self._go_to(prompts, request, num_steps)
            began = clock()
            for _ in range(num_steps):
                for bound in launches:
                    started = clock()
                    bound.run()
                    spent_s[bound.kind] += clock() - started
            total_s = clock() - began
        context += num_steps // 2
        classes = tuple(
            LaunchClass(
                name=kind,
                step_s=time_s / num_steps,
                read_bytes=sum(bound.read_bytes(context) for bound in launches if bound.kind == kind),
                write_bytes=sum(bound.write_bytes for bound in launches if bound.kind == kind),
            )
            for kind, time_s in spent_s.items()
        )
        return Evidence(
            num_steps=num_steps,
            step_s=total_s / num_steps,
            outside_kernels_s=max(0.0, (total_s - sum(spent_s.values())) / num_steps),
            classes=classes,
        )

    def _go_to(
        self, prompts: tuple[tuple[int, ...], ...], request: Request, num_steps: int, step: int | None = None
    ) -> int:
        """Before a step of the answer, else its middle: what the cache costs is then what it cost the run on average.
        Returns the context."""
        self._take_in(prompts, request.skip_prompt)
        room = self._decoder.workspace.max_context - num_steps
        context = min(len(prompts[0]) + (request.max_output_tokens // 2 if step is None else step), room)
        self._decoder.context.fill_(context)
        return context

    def trace(self, request: Request, num_steps: int, folder: Path, first_step: int | None = None) -> None:
        """A step more than asked for: from mark to mark they are whole."""
        prompts, on_gpu = self._ids(request), self._executor.device.kind != "cpu"
        self._check_fits(len(prompts), len(prompts[0]) + num_steps + 1)
        step, graph = self._decoder.decode_step(len(prompts)), self._decode_launch(len(prompts))
        chunk = [ids[: self._decoder.prefill_chunk] for ids in prompts[:1]]
        with self._undisturbed():
            with traced(folder / PREFILL_TRACE, on_gpu), record_function(prefill_mark(0, len(chunk[0]))):
                self._decoder.prefill(chunk, Step.run if on_gpu else run_marked)
            self._go_to(prompts, request, num_steps + 1, first_step)
            with traced(folder / DECODE_TRACE, on_gpu):
                for _ in range(num_steps + 1):
                    with record_function(DECODE_MARK):
                        graph() if on_gpu else run_marked(step)
                        self._read_tokens(len(prompts))

    def report(self) -> EngineReport:
        pool = self._executor.pool
        return EngineReport(
            kind="native",
            dtype=self._ops.dtype,
            num_threads=pool.num_threads if pool else None,
            ops=self._ops.choices(),
            elementwise=self._decoder.workspace.elementwise.name,
            graph=self._has_graph,
            load_s=self._load_s,
            prepare_s=self._ops.prepare_s,
            notes=self._notes,
        )

    def close(self) -> None:
        """Frees what the engine holds of the device."""
        del self._decoder, self._decodes, self._read_tokens

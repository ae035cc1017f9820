"""`harness ab linear`, `ab attention`, `ab linear-attention`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import (
    Format,
    FormatOption,
    RunsDirOption,
    SetOption,
    shortened,
    tell,
    tell_finished,
    validated,
)

if TYPE_CHECKING:
    from harness.errors import ConfigError
    from harness.specs.ab import AbRecord
    from harness.specs.ab_run import AbRunRecord, Agreement
    from harness.specs.engine import EngineReport

MAX_COUNT = 1 << 20

app = typer.Typer(help="Compare implementations, interleaved and checked.", no_args_is_help=True)

ModelOption = Annotated[str, typer.Option("--model", help="Whose shapes: a known name, a folder or a config.json.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda (ROCm and DCU too).")]
BackendOption = Annotated[list[str] | None, typer.Option("--backend", help="Only this one (repeatable) [all].")]
BaselineOption = Annotated[str | None, typer.Option("--baseline", help="What ratios are taken to [torch's own].")]
PrecisionOption = Annotated[
    float, typer.Option("--precision", min=1e-4, max=1.0, help="Rounds end when every ratio is known to so much.")
]
BlocksOption = Annotated[int, typer.Option("--blocks", min=8, help="Interleaved rounds, at least.")]
SaveOption = Annotated[
    bool, typer.Option("--save", help="Put the winners into configs/selections/<device>/<model>-<dtype>[-tp2].yaml.")
]
WorkersOption = Annotated[
    int, typer.Option("--tensor-parallel", min=1, max=MAX_COUNT, help="A worker's share of so many, as vLLM cuts it.")
]
MaxBlocksOption = Annotated[int, typer.Option("--max-blocks", min=8, help="Rounds, at most.")]


@app.callback()
def _group() -> None:
    """Compare implementations, interleaved and checked."""


@app.command()
def linear(
    model: ModelOption,
    batch: Annotated[str, typer.Option("--batch", help="Rows of x, with commas: 1,2,4,8.")] = "1",
    tensor_parallel: WorkersOption = 1,
    device: DeviceOption = "auto",
    backend: BackendOption = None,
    baseline: BaselineOption = None,
    precision: PrecisionOption = 0.03,
    blocks: BlocksOption = 8,
    max_blocks: MaxBlocksOption = 24,
    save: SaveOption = False,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Every linear backend on each shape of a model: GB/s, share of the probe, ratio to the baseline."""
    settings = {
        "op": "linear", "model": model, "batches": _counts("--batch", batch), "tensor_parallel": tensor_parallel,
        "device": device, "backends": tuple(backend or ()), "baseline": baseline, "precision": precision,
        "min_blocks": blocks, "max_blocks": max(blocks, max_blocks),
    }  # fmt: skip
    _compare(settings, runs_dir, format, save)


@app.command()
def attention(
    model: ModelOption,
    contexts: Annotated[str, typer.Option("--contexts", help="Filled places, with commas.")] = "512,2048,8192",
    chunks: Annotated[str, typer.Option("--chunks", help="New tokens: 1 decodes, more are a prompt's.")] = "1,512",
    tensor_parallel: WorkersOption = 1,
    device: DeviceOption = "auto",
    backend: BackendOption = None,
    baseline: BaselineOption = None,
    precision: PrecisionOption = 0.03,
    blocks: BlocksOption = 8,
    max_blocks: MaxBlocksOption = 24,
    save: SaveOption = False,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Every attention backend on a model's heads, over a cache of each context: one query, and a prompt's chunk."""
    settings = {
        "op": "attention", "model": model, "contexts": _counts("--contexts", contexts),
        "chunks": _counts("--chunks", chunks), "tensor_parallel": tensor_parallel, "device": device,
        "backends": tuple(backend or ()), "baseline": baseline, "precision": precision, "min_blocks": blocks,
        "max_blocks": max(blocks, max_blocks),
    }  # fmt: skip
    _compare(settings, runs_dir, format, save)


@app.command("linear-attention")
def linear_attention(
    model: ModelOption,
    chunks: Annotated[str, typer.Option("--chunks", help="New tokens: 1 decodes, more are a prompt's.")] = "1,64",
    tensor_parallel: WorkersOption = 1,
    device: DeviceOption = "auto",
    backend: BackendOption = None,
    baseline: BaselineOption = None,
    precision: PrecisionOption = 0.03,
    blocks: BlocksOption = 8,
    max_blocks: MaxBlocksOption = 24,
    save: SaveOption = False,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Every backend of the gated delta rule on a model's heads: one token, and a prompt's chunk."""
    settings = {
        "op": "linear-attention", "model": model, "chunks": _counts("--chunks", chunks),
        "tensor_parallel": tensor_parallel, "device": device, "backends": tuple(backend or ()), "baseline": baseline,
        "precision": precision, "min_blocks": blocks, "max_blocks": max(blocks, max_blocks),
    }  # fmt: skip
    _compare(settings, runs_dir, format, save)


@app.command()
def run(
    a: Annotated[Path, typer.Argument(help="A run's YAML file: the baseline (presets: configs/runs/ab).")],
    b: Annotated[Path, typer.Argument(help="Another that differs in one key of its engine.")],
    set_: SetOption = None,
    precision: Annotated[
        float, typer.Option("--precision", min=1e-4, max=1.0, help="Rounds end when TPOT's ratio is known to so much.")
    ] = 0.02,
    blocks: Annotated[int, typer.Option("--blocks", min=2, help="Rounds, at least.")] = 5,
    max_blocks: Annotated[int, typer.Option("--max-blocks", min=2, help="Rounds, at most.")] = 12,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Whole requests by two variants of one engine, in one process, on the same weights; --set changes both."""
    from harness.ab.whole_run import run_ab_run
    from harness.cli.render import show_object
    from harness.config_io import load_yaml_model
    from harness.records import runs_dir as resolve
    from harness.specs.ab_run import AbRunConfig
    from harness.specs.run import RunConfig

    sides = [load_yaml_model(path, RunConfig, set_ or ()) for path in (a, b)]
    settings = {"a": sides[0], "b": sides[1], "precision": precision, "min_blocks": blocks}
    config = validated(AbRunConfig, {**settings, "max_blocks": max(blocks, max_blocks)})
    folder, record = run_ab_run(config, resolve(runs_dir), tell, tell_finished)
    row = {**record.model_dump(mode="json"), "record": str(folder)}
    show_object(row, format, [*ab_run_lines(record), ("record", str(folder))])


def ab_run_lines(record: "AbRunRecord") -> list[tuple[str, str]]:
    """What two variants came down to, as people read it."""
    lines = [("differs", f"{record.difference.key}: a {record.difference.a!r}, b {record.difference.b!r}")]
    for side in record.sides:
        lines.append((side.side, f"TTFT {side.ttft_s * 1e3:.1f} ms, TPOT {side.tpot_s * 1e3:.3f} ms (medians)"))
        lines += [(side.side, text) for text in _ran_texts(side.engine)]
    for found in record.comparisons:
        low, high = found.interval
        what = f"a / b = {found.ratio:.3f} [{low:.3f}, {high:.3f}], {found.num_pairs} rounds: {found.shows}"
        lines.append((found.figure.removesuffix("_s").upper(), what))
    if record.agreement is not None:
        lines.append(("answers", _agreement_text(record.agreement)))
    return lines


def _ran_texts(report: "EngineReport") -> list[str]:
    """Of one side: proof of what ran inside vLLM, what did not run though it was asked for, and the engine's notes."""
    from harness.cli.bench import counted_line
    from harness.run_warnings import fallback_lines

    return [*counted_line(report), *fallback_lines(report), *report.notes]


def _agreement_text(found: "Agreement") -> str:
    same = f"{found.num_same} of {found.num_requests} the same"
    if found.first_difference is not None:
        same += f"; the first parts in round {found.first_difference[0] + 1} at token {found.first_difference[1] + 1}"
    if found.logits_max_difference is not None and found.logits_max is not None:
        same += (
            f"; logits behind the prompt differ by {found.logits_max_difference:.3g} at most, of {found.logits_max:.3g}"
        )
    return same


def _counts(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between; ConfigError for others."""
    from harness.errors import ConfigError

    if not all(_is_count(part.strip()) for part in text.split(",")):
        raise ConfigError(
            f"{option} {shortened(text)}: not whole numbers from 1 to {MAX_COUNT}", f"write for example {option} 1,2,4"
        )
    return tuple(dict.fromkeys(map(int, text.split(","))))


def _is_count(text: str) -> bool:
    """Its length comes first: Python refuses to read a number of thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(MAX_COUNT)) and 0 < int(text) <= MAX_COUNT


def _compare(settings: dict[str, Any], runs_dir: Any, format: Format, save: bool) -> None:
    """Run it, show its rows, and keep its winners if that is asked for."""
    from harness.ab.compare import run_ab
    from harness.cli.ab_lines import ab_table, is_unstable, lines_below, worth_lines
    from harness.cli.render import show, show_object
    from harness.errors import MeasurementError
    from harness.records import runs_dir as resolve
    from harness.specs.ab import AbConfig
    from harness.units import percent

    config = validated(AbConfig, settings)
    folder, record = run_ab(config, resolve(runs_dir), tell, saves=save, finished=tell_finished)
    unstable = is_unstable(record)
    table, not_kept = _kept(record) if save and not unstable else (None, None)
    saved = {} if table is None else {"selection": str(table)}
    if format is Format.table:
        share = f", a worker of {config.tensor_parallel}" if config.tensor_parallel > 1 else ""
        title = f"{config.op} backends on {config.model}{share}, {record.device.name}"
        show(ab_table(record.rows, unstable), format, title=title)
        for line in (*lines_below(record), *worth_lines(record.rows, unstable)):
            typer.echo(line)
        typer.echo(f"record  {folder}")
        if table is not None:
            typer.echo(f"table   {table}")
    elif format is Format.json:
        show_object({**record.model_dump(mode="json"), "record": str(folder), **saved}, format, ())
    else:
        show([row.model_dump(mode="json") | {"record": str(folder)} | saved for row in record.rows], format)
    if not_kept is not None:
        raise not_kept
    if unstable:
        not_saved = "; no winner was saved" if save else ""
        raise MeasurementError(
            f"unstable: other processes kept this comparison's threads from their cores for"
            f" {percent(record.cpu_wait_frac)} of the time; ratios may hold, times and shares of the probe"
            f" do not{not_saved}",
            "stop what else runs on the machine, and compare again",
        )


def _kept(record: "AbRecord") -> "tuple[Path | None, ConfigError | None]":
    """(the table that has its winners, why they could not be put there): what was measured is shown first."""
    from harness.ab.compare import save_winners
    from harness.errors import ConfigError

    try:
        return save_winners(record), None
    except ConfigError as fault:
        return None, fault

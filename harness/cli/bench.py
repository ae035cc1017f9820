"""`harness bench CONFIG`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Format, FormatOption, RunsDirOption, SetOption, tell

if TYPE_CHECKING:
    from harness.specs.analysis import Analysis
    from harness.specs.engine import EngineReport
    from harness.specs.record import RunRecord

Lines = list[tuple[str, str]]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("bench")(bench)


def bench(
    config: Annotated[Path, typer.Argument(help="A run's YAML file (configs/runs/*.yaml).")],
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", help="Several values in one run: input_tokens=64,512,2048, context=..., batch=1..64."),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Also trace a prompt's chunk and decode steps (--set profile.decode_steps=8, profile.first_step=100).",
        ),
    ] = False,
    set_: SetOption = None,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Measure one long decode on this machine, and judge it."""
    from harness.bench import check_gate, run_bench
    from harness.config_io import load_yaml_model
    from harness.errors import MeasurementError
    from harness.records import runs_dir as resolve_runs_dir
    from harness.specs.run import RunConfig
    from harness.specs.sweep import as_override, parse_sweep

    overrides = [*(set_ or ()), *([as_override(parse_sweep(sweep))] if sweep else [])]
    run = load_yaml_model(config, RunConfig, overrides)
    if profile and run.profile is None:  # else the file's or the user's number of steps stays
        run = load_yaml_model(config, RunConfig, [*overrides, "profile={}"])
    folder, record, text = run_bench(run, resolve_runs_dir(runs_dir), tell)
    if record.config.profile is not None:
        record = complete_by_trace(folder, record, format)
    if format is Format.table and text:
        typer.echo(f"--- what the model wrote (repeat 1) ---\n{text.strip()}\n---")
    show_figures(record, {**figures_row(record), "record": str(folder)}, format, [], folder)
    if record.analysis is not None:
        check_gate(run.gate, record.analysis)
    if not is_answer(record):
        raise typer.Exit(MeasurementError.exit_code)


def complete_by_trace(folder: Path, record: "RunRecord", format: Format) -> "RunRecord":
    """The run with what its decode's trace says of gaps and cause; the trace's own tables for people."""
    from harness.cli.profile import show_profile
    from harness.engines.base import DECODE_TRACE, PREFILL_TRACE
    from harness.profile import profile_trace

    found = profile_trace(folder / DECODE_TRACE, run=folder)
    if format is Format.table:
        show_profile(found, format)
        typer.echo(f"\nthe prompt's: harness profile {folder / PREFILL_TRACE} --run {folder}\n")
    return found.record or record


def is_answer(record: "RunRecord") -> bool:
    """Whether the run says what it was made for: a verdict, the split of a sweep over contexts, the fit of one over
    prompts."""
    if record.sweep is not None:
        wanted = {"context": record.sweep.split, "input_tokens": record.sweep.ttft_fit, "batch": record.sweep.points}
        return bool(wanted[record.sweep.over])
    return record.analysis is not None and record.analysis.verdict not in ("invalid", "unstable")


def figures_row(record: "RunRecord") -> dict[str, Any]:
    """What a run came down to; nothing where it did not come so far."""
    figures = record.sweep if record.analysis is None else record.analysis
    return {} if figures is None else figures.model_dump(mode="json")


def show_figures(record: "RunRecord", row: dict[str, Any], format: Format, lines: Lines, folder: Path) -> None:
    """A run of one workload as lines, a sweep with a table of its values; `row` is what programs get."""
    from harness.cli.render import show, show_object
    from harness.cli.sweep_lines import point_rows, sweep_lines

    if record.analysis is not None:
        lines = [*lines, *analysis_lines(record.analysis), *engine_lines(record.engine)]
    if record.sweep is not None:
        points = record.sweep.model_dump(mode="json")["points"]
        if format is Format.csv and points:  # a row a value; the fits are in the other formats
            show([{record.sweep.over: point["value"], **point["analysis"]} for point in points], format)
            return
        if format in (Format.table, Format.md):
            show(point_rows(record.sweep), format, title=f"{record.config.name} over {record.sweep.over}")
        lines = [*lines, *sweep_lines(record.sweep)]
    show_object(row, format, [*lines, ("record", str(folder))], title="" if record.sweep else record.config.name)


def analysis_lines(a: "Analysis") -> list[tuple[str, str]]:
    """The row as a person reads it: what was found, then what it rests on."""
    from harness.units import gb_per_s, ms, num_bytes, percent

    interval = f" [{a.util_interval_frac[0]:.3f}, {a.util_interval_frac[1]:.3f}]" if a.util_interval_frac else ""
    util = f"{a.util_frac:.3f}{interval}" if a.util_frac is not None else "-"
    kept = f"cache {a.kv_bytes_per_context_token:,} B a position"
    kept += f", state {a.state_read_bytes:,} B read and written" if a.state_read_bytes else ""
    kernels = ", ".join(sorted(set(a.kernels.values()))) or "-"
    lines = [
        ("verdict", f"{a.verdict}: {a.reason}"),
        ("cause", a.cause),
        ("next step", a.next_step),
        ("utilization", f"{util} of the roof ({a.util_interval_method or 'no interval'})"),
        ("TPOT", f"{ms(a.tpot_s)} (p99 {ms(a.tpot_p99_s)}, spread {ms(a.tpot_spread_s)} over {a.num_repeats} repeats)"),
        ("floor", f"{ms(a.floor_s)} a step"),
        ("TTFT", f"{ms(a.ttft_s)} for {a.input_tokens} prompt tokens"),
        ("throughput", f"{a.throughput_tokens_per_s:.2f} tokens/s" if a.throughput_tokens_per_s else "-"),
        ("time", f"prefill {percent(a.prefill_time_frac)}, decode {percent(a.decode_time_frac)}"),
        ("bytes per token", f"{num_bytes(a.step_bytes)}: weights {a.weight_read_bytes:,} B, {kept}"),
        ("roof", f"{gb_per_s(a.roof_read_bytes_per_s)} ({a.roof_source or 'none'})"),
        ("probe", f"{gb_per_s(a.probe_read_bytes_per_s)}; data sheet {gb_per_s(a.datasheet_bytes_per_s)}"),
        ("achieved", gb_per_s(a.achieved_bytes_per_s)),
        ("MFU", f"decode {percent(a.mfu_frac)}, prefill {percent(a.prefill_mfu_frac)}"),
        ("prefill", prefill_line(a)),
        ("bottlenecks", bottleneck_line(a)),
        ("lost", f"outside kernels {percent(a.outside_kernels_frac)}; waiting for a core {percent(a.cpu_wait_frac)}"),
        ("run", f"{a.model}, {a.precision}, {a.engine} on {a.hardware}; {kernels}"),
    ]
    if a.official_ttft_s is not None:
        lines.append(("official", official_line(a)))
    return lines + [("warning", warning) for warning in a.warnings]


def official_line(a: "Analysis") -> str:
    """The same requests by the other definitions."""
    from harness.units import MISSING, ms

    rate = a.official_throughput_tokens_per_s
    times = f"TTFT {ms(a.official_ttft_s)}, TPOT {ms(a.official_tpot_s)}, ITL {ms(a.official_itl_s)}"
    throughput = MISSING if rate is None else f"{rate:.2f} tokens/s"
    return f"{times} (p99 {ms(a.official_itl_p99_s)}), {throughput} as vllm bench serve counts them"


def engine_lines(report: "EngineReport | None") -> Lines:
    """What it counted, and what it noted of itself."""
    if report is None:
        return []
    return [("counted", line) for line in counted_line(report)] + [("note", note) for note in report.notes]


def counted_line(report: "EngineReport") -> list[str]:
    """Proof of what ran inside vLLM; none where nothing counts."""
    if report.counted_steps is None:
        return []
    of = "" if report.answered_steps is None else f", {report.answered_steps} in the answers"
    calls = report.resolved.get("selection_calls") or "none"
    return [f"{report.counted_steps} decode steps in every layer{of}; calls: {calls}"]


def prefill_line(a: "Analysis") -> str:
    """The prompt's own verdict and what it rests on."""
    from harness.units import gb_per_s, ms, percent

    if a.prefill_verdict is None:
        return "no prompt was computed"
    quadratic = (a.prefill_attention_flop or 0) / a.prefill_flop if a.prefill_flop else None
    rest = f"floor {ms(a.prefill_floor_s)}, weights at {gb_per_s(a.prefill_achieved_bytes_per_s)}"
    return f"{a.prefill_verdict}: {a.prefill_reason} ({rest}; {percent(quadratic)} of its FLOP grow with the square)"


def bottleneck_line(a: "Analysis") -> str:
    """Where the whole request's time goes: the main part, the second, and what follows."""
    from harness.units import MISSING, percent

    parts = [f"{share.part} {percent(share.time_frac)}" for share in a.time_shares[:4]]
    names = [f"{name} {part}" for name, part in zip(("main", "second"), parts, strict=False)]
    return ", ".join(names + parts[2:]) or MISSING

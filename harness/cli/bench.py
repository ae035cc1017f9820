"""`harness bench CONFIG`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import Format, FormatOption, RunsDirOption, SetOption, tell

if TYPE_CHECKING:
    from harness.specs.record import Analysis


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("bench")(bench)


def bench(
    config: Annotated[Path, typer.Argument(help="A run's YAML file (configs/runs/*.yaml).")],
    set_: SetOption = None,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Measure one long decode on this machine, and judge it."""
    from harness.bench import check_gate, run_bench
    from harness.cli.render import show_object
    from harness.config_io import load_yaml_model
    from harness.errors import MeasurementError
    from harness.records import runs_dir as resolve_runs_dir
    from harness.specs.run import RunConfig

    run = load_yaml_model(config, RunConfig, set_ or ())
    folder, record, text = run_bench(run, resolve_runs_dir(runs_dir), tell)
    analysis = record.analysis
    if analysis is None:
        raise MeasurementError(f"run {record.run_id} has no analysis", "see its log.txt")
    if format is Format.table and text:
        typer.echo(f"--- what the model wrote (repeat 1) ---\n{text.strip()}\n---")
    row = {**analysis.model_dump(mode="json"), "record": str(folder)}
    show_object(row, format, [*analysis_lines(analysis), ("record", str(folder))], title=analysis.name)
    check_gate(run.gate, analysis)
    if analysis.verdict in ("invalid", "unstable"):
        raise typer.Exit(MeasurementError.exit_code)


def analysis_lines(a: "Analysis") -> list[tuple[str, str]]:
    """The row as a person reads it: what was found, then what it rests on."""
    from harness.units import gb_per_s, ms, num_bytes, percent

    interval = f" [{a.util_interval_frac[0]:.3f}, {a.util_interval_frac[1]:.3f}]" if a.util_interval_frac else ""
    util = f"{a.util_frac:.3f}{interval}" if a.util_frac is not None else "-"
    kv = f"{a.kv_bytes_per_context_token:,} B"
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
        ("bytes per token", f"{num_bytes(a.step_bytes)}: weights {a.weight_read_bytes:,} B, cache {kv} a position"),
        ("roof", f"{gb_per_s(a.roof_read_bytes_per_s)} ({a.roof_source or 'none'})"),
        ("probe", f"{gb_per_s(a.probe_read_bytes_per_s)}; data sheet {gb_per_s(a.datasheet_bytes_per_s)}"),
        ("achieved", gb_per_s(a.achieved_bytes_per_s)),
        ("MFU", f"decode {percent(a.mfu_frac)}, prefill {percent(a.prefill_mfu_frac)}"),
        ("lost", f"outside kernels {percent(a.outside_kernels_frac)}; waiting for a core {percent(a.cpu_wait_frac)}"),
        ("run", f"{a.model}, {a.precision}, {a.engine} on {a.hardware}; {kernels}"),
    ]
    return lines + [("warning", warning) for warning in a.warnings]

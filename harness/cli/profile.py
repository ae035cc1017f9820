"""`harness profile TRACE`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Format, FormatOption, RunsDirOption

if TYPE_CHECKING:
    from harness.profile import Profiled
    from harness.specs.profile import TraceProfile

NAME_WIDTH = 56
NUM_OTHER = 5
Rows = list[dict[str, Any]]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("profile")(profile)


def profile(
    trace: Annotated[Path, typer.Argument(help="torch.profiler's JSON (.gz), hipprof's JSON or *.hipkernel.csv.")],
    run: Annotated[
        str | None, typer.Option("--run", help="The run that was traced: gives bytes and roof, and gets a cause.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Decode steps that the trace holds.")] = None,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Where a trace's time goes: classes of kernels, idle gaps and what spans them, walls, and what would help."""
    from harness.errors import MeasurementError
    from harness.profile import profile_trace
    from harness.records import find_run
    from harness.records import runs_dir as resolve

    found = profile_trace(trace, steps, find_run(resolve(runs_dir), run) if run else None)
    show_profile(found, format)
    if found.profile.status == "incomplete":
        raise typer.Exit(MeasurementError.exit_code)


def show_profile(found: "Profiled", format: Format) -> None:
    """Lines and tables for people, a row a class as csv, the whole as json."""
    from harness.cli.render import show, show_object

    p = found.profile
    row = p.model_dump(mode="json")
    if format is Format.json:
        show_object({**row, "run": _run_row(found)}, format, [])
        return
    if format is Format.csv:
        show(row["classes"], format)
        return
    show_object(row, format, profile_lines(found), title=p.trace)
    tables = {
        "classes": class_rows(p), "idle time": gap_rows(p), "longest gaps": long_gap_rows(p),
        "largest kernels": kernel_rows(p), "kernels of no known class": other_rows(p), "what if": what_if_rows(p),
    }  # fmt: skip
    for title, rows in tables.items():
        if rows:
            typer.echo("")
            show(rows, format, title=title)


def _run_row(found: "Profiled") -> dict[str, Any] | None:
    """The run after it was completed."""
    if found.record is None or found.record.analysis is None:
        return None
    return found.record.analysis.model_dump(
        mode="json", include={"run_id", "verdict", "reason", "cause", "next_step", "timeline_gaps_s"}
    )


def profile_lines(found: "Profiled") -> list[tuple[str, str]]:
    """What was found, then what it rests on."""
    from harness.units import ms, percent

    p = found.profile
    if p.status == "incomplete":
        lines = [("status", f"incomplete: {p.reason}"), ("next step", p.next_step)]
        return lines + [("note", note) for note in p.notes]
    lines = [("cause", f"{p.cause}: {p.why}"), ("next step", p.next_step), what_it_holds(p)]
    if p.wall_s is not None and p.gaps_s is not None:
        shares = f"busy {ms(p.busy_s)}, gaps {ms(p.gaps_s)} ({percent(p.gaps_s / p.wall_s)}, {p.num_gaps:,.1f} of them)"
        lines.append((f"wall a {p.per}", f"{ms(p.wall_s)}: {shares}"))
    lines.append(("trace", f"{p.format}, {p.device or 'no timeline'}"))
    if p.mean_context is not None:
        at = "at its mean context" if p.positions is None else "for these positions, mean context"
        lines.append(("bytes", f"of the run's model {at} {p.mean_context:,}"))
    if found.record is not None and found.record.analysis is not None:
        run = found.record.analysis
        lines.append(("run", f"{run.run_id}: {run.verdict}: {run.reason}"))
        lines.append(("run's cause", f"{run.cause}; gaps {ms(run.timeline_gaps_s)} a step"))
    return lines + [("note", note) for note in p.notes]


def what_it_holds(p: "TraceProfile") -> tuple[str, str]:
    """Decode steps, or a part of a prompt."""
    if p.positions is not None:
        return "prompt", "positions {} to {}, the last not among them".format(*p.positions)
    return "steps", f"{p.num_steps} by {p.steps_source}" if p.num_steps else "unknown: figures are per trace"


def class_rows(p: "TraceProfile") -> Rows:
    """One row a class."""
    from harness.units import ms, num_bytes, percent

    return [
        {
            "class": row.kernel_class, "share": percent(row.time_frac), "time": ms(row.time_s),
            "calls": f"{row.num_calls:,.1f}", "bytes": num_bytes(row.moved_bytes),
            "GFLOP": "-" if row.flop is None else f"{row.flop / 1e9:,.3f}", "floor": ms(row.floor_s),
            "of its roof": percent(row.roof_frac), "wall": row.bound or "-",
        }
        for row in p.classes
    ]  # fmt: skip


def gap_rows(p: "TraceProfile") -> Rows:
    """One row a kind of call that spans idle time."""
    from harness.units import ms, percent

    return [{"host": row.spanned_by, "time": ms(row.time_s), "share": percent(row.time_frac)} for row in p.gaps]


def long_gap_rows(p: "TraceProfile") -> Rows:
    """The longest gaps, each whole."""
    from harness.units import ms

    return [
        {
            "gap": ms(gap.gap_s), "at": ms(gap.begin_s), "host": gap.call or gap.spanned_by,
            "after": short(gap.after, 32), "before": short(gap.before, 32),
        }
        for gap in p.longest_gaps
    ]  # fmt: skip


def kernel_rows(p: "TraceProfile") -> Rows:
    """The largest kernels, each with its wall and how far its calls are from it."""
    from harness.units import ms, percent

    return [
        {
            "kernel": short(row.name, NAME_WIDTH), "class": row.kernel_class, "share": percent(row.time_frac),
            "time": ms(row.time_s), "calls": f"{row.num_calls:,.1f}", "wall": row.bound or "not known",
            "of its roof": percent(row.roof_frac), "why": row.why,
        }
        for row in p.kernels
    ]  # fmt: skip


def other_rows(p: "TraceProfile") -> Rows:
    """What a rule in kernel_classes.yaml would make known: the largest by name, the rest by number."""
    from harness.units import ms, percent

    rows = [
        {"kernel": short(row.name, NAME_WIDTH), "share": percent(row.time_frac), "time": ms(row.time_s)}
        for row in p.other_kernels[:NUM_OTHER]
    ]
    if rest := p.other_kernels[NUM_OTHER:]:
        share, time_s = sum(row.time_frac for row in rest), sum(row.time_s for row in rest)
        more = f"and {len(rest)} more (--format json lists them)"
        rows.append({"kernel": more, "share": percent(share), "time": ms(time_s)})
    return rows


def what_if_rows(p: "TraceProfile") -> Rows:
    """Amdahl's law, the largest gain first."""
    from harness.units import ms

    return [
        {
            "what if": row.what, f"wall a {p.per}": ms(row.wall_s),
            "times as fast": "-" if row.speedup is None else f"{row.speedup:.3f}",
        }
        for row in p.what_ifs
    ]  # fmt: skip


def short(name: str | None, width: int) -> str:
    """A name that fits; its begin and its end, since templates differ at either."""
    name = (name or "-").removeprefix("void ").removeprefix("at::native::")
    return name if len(name) <= width else f"{name[: width * 2 // 3 - 3]}...{name[-(width - width * 2 // 3) :]}"

"""`harness runs list|show|compare|recompute`: what earlier runs left behind."""

from typing import Annotated, Any

import typer

from harness.cli.options import Format, FormatOption, RunsDirOption

app = typer.Typer(help="Look at earlier runs.", no_args_is_help=True)
RunArgument = Annotated[str, typer.Argument(help="A run's folder, its id, or a part of its id that no other run has.")]


@app.command("list")
def list_(runs_dir: RunsDirOption = None, format: FormatOption = Format.table) -> None:
    """Every run, oldest first; a killed one shows as interrupted."""
    from harness.cli.render import show
    from harness.records import runs_dir as resolve
    from harness.report.runs import run_rows

    parent = resolve(runs_dir)
    rows = run_rows(parent)
    if not rows and format is Format.table:
        typer.echo(f"no runs in {parent}", err=True)
        return
    show([_readable(row) for row in rows] if format is Format.table else rows, format)


def _readable(row: dict[str, Any]) -> dict[str, str]:
    """A row as people read it: milliseconds, three decimals."""
    from harness.units import MISSING, ms

    util = row["util_frac"]
    return {
        "run": row["run"],
        "status": row["status"],
        "verdict": row["verdict"] or MISSING,
        "utilization": MISSING if util is None else f"{util:.3f}",
        "TPOT": ms(row["tpot_s"]),
        "note": row["note"] or MISSING,
    }


@app.command()
def show(run: RunArgument, runs_dir: RunsDirOption = None, format: FormatOption = Format.table) -> None:
    """One run's record."""
    from harness.cli.ab import ab_run_lines
    from harness.cli.ab_lines import ab_table, is_unstable, lines_below
    from harness.cli.bench import show_figures
    from harness.cli.render import show as show_rows
    from harness.cli.render import show_object
    from harness.records import find_run, load_record
    from harness.records import runs_dir as resolve
    from harness.specs.ab_run import AbRunRecord
    from harness.specs.record import RunRecord

    folder = find_run(resolve(runs_dir), run)
    record = load_record(folder)
    lines: list[tuple[str, str]] = [("status", record.status)]
    if record.failure is not None:
        lines += [("failure", record.failure.what), ("mend", record.failure.mend)]
    if isinstance(record, AbRunRecord):
        lines += [*ab_run_lines(record), ("record", str(folder))]
        show_object(record.model_dump(mode="json"), format, lines, title=record.run_id)
        return
    if not isinstance(record, RunRecord):
        lines += [("problems", record.unfinished)] * bool(record.unfinished) + [("record", str(folder))]
        show_object(record.model_dump(mode="json"), format, lines, title=record.run_id)
        if format is Format.table and record.rows:
            show_rows(ab_table(record.rows, is_unstable(record)), format)
            for line in lines_below(record):
                typer.echo(line)
        return
    show_figures(record, record.model_dump(mode="json"), format, lines, folder)


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Two or more runs.")],
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Runs side by side, with what differs between their configurations and surroundings."""
    from harness.cli.render import show
    from harness.records import find_run, load_bench
    from harness.records import runs_dir as resolve
    from harness.report.runs import comparison_rows

    parent = resolve(runs_dir)
    show(comparison_rows([load_bench(find_run(parent, run)) for run in runs]), format)


@app.command()
def recompute(run: RunArgument, runs_dir: RunsDirOption = None, format: FormatOption = Format.table) -> None:
    """Derive a run's figures again from its samples, and store them; also makes figures of an interrupted run."""
    from harness.cli.bench import figures_row, show_figures
    from harness.records import find_run
    from harness.records import runs_dir as resolve
    from harness.report.runs import recompute_run

    folder = find_run(resolve(runs_dir), run)
    record = recompute_run(folder)
    show_figures(record, figures_row(record), format, [], folder)

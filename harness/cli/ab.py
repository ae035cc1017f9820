"""`harness ab linear`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Format, FormatOption, RunsDirOption, tell

if TYPE_CHECKING:
    from harness.specs.ab import AbRow

MAX_BATCH = 4096

app = typer.Typer(help="Compare implementations, interleaved and checked.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Compare implementations, interleaved and checked."""


@app.command()
def linear(
    model: Annotated[str, typer.Option("--model", help="Whose shapes: a known name, a folder or a config.json.")],
    batch: Annotated[str, typer.Option("--batch", help="Rows of x, with commas: 1,2,4.")] = "1",
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Only this one (repeatable) [all].")] = None,
    baseline: Annotated[str, typer.Option("--baseline", help="What ratios are taken to.")] = "torch",
    blocks: Annotated[int, typer.Option("--blocks", min=8, help="Interleaved rounds.")] = 12,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Every linear backend on each shape of a model: GB/s, share of the probe, ratio to the baseline."""
    from harness.ab.linear import run_ab_linear
    from harness.cli.render import show, show_object
    from harness.errors import ConfigError
    from harness.records import runs_dir as resolve
    from harness.specs.ab import AbConfig

    if not all(part.strip().isdecimal() and 0 < int(part) <= MAX_BATCH for part in batch.split(",")):
        raise ConfigError(
            f"--batch {batch}: not whole numbers from 1 to {MAX_BATCH}", "write for example --batch 1,2,4"
        )
    config = AbConfig(
        model=model,
        batches=tuple(map(int, batch.split(","))),
        backends=tuple(backend or ()),
        baseline=baseline,
        blocks=blocks,
    )
    folder, record = run_ab_linear(config, resolve(runs_dir), tell)
    if format is Format.table:
        show(ab_table(record.rows), format, title=f"linear backends on {model}, {record.device.name}")
        typer.echo(f"record  {folder}")
    elif format is Format.json:
        show_object({**record.model_dump(mode="json"), "record": str(folder)}, format, ())
    else:
        show([row.model_dump(mode="json") | {"record": str(folder)} for row in record.rows], format)


def ab_table(rows: "Sequence[AbRow]") -> list[dict[str, Any]]:
    """Rows as people read them."""
    from harness.units import MISSING, percent

    return [
        {
            "product": row.role,
            "m x n x k": row.shape,
            "backend": row.backend,
            "GB/s": f"{row.read_bytes_per_s / 1e9:.1f}" if row.read_bytes_per_s else MISSING,
            "of probe": percent(row.probe_frac),
            "times the baseline": _ratio(row),
            "outcome": row.outcome if row.status == "ok" else f"{row.status}: {row.why}",
        }
        for row in rows
    ]  # fmt: skip


def _ratio(row: "AbRow") -> str:
    if row.ratio_to_baseline is None or row.ratio_interval is None:
        return "-"
    low, high = row.ratio_interval
    return f"{row.ratio_to_baseline:.2f} [{low:.2f}, {high:.2f}]"

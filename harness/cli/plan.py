"""`harness plan MODEL --device D`: the walls of a decode, and what would move them."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Format, FormatOption, RunsDirOption

if TYPE_CHECKING:
    from pathlib import Path

    from harness.specs.plan import Plan, Scenario

MAX_COUNT = 1 << 30


class Bits(str, Enum):
    """Widths that a plan can try."""

    four = "4"
    eight = "8"


def _count(name: str, help: str) -> Any:
    return typer.Option(name, min=1, max=MAX_COUNT, help=help)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("plan")(plan)


def plan(
    model: Annotated[str, typer.Argument(help="A known name, a checkpoint's folder, or a config.json.")],
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="A known device or a device's YAML file (harness devices); repeatable."),
    ] = None,
    context: Annotated[int, _count("--context", "Positions that each request attends to.")] = 1024,
    batch: Annotated[int, _count("--batch", "Requests in one step.")] = 1,
    input_tokens: Annotated[int | None, _count("--input-tokens", "Length of the prompt [the context].")] = None,
    tensor_parallel: Annotated[int, _count("--tensor-parallel", "Devices that share every layer.")] = 1,
    weight_bits: Annotated[Bits | None, typer.Option("--weight-bits", help="Every matrix so wide.")] = None,
    kv_bits: Annotated[Bits | None, typer.Option("--kv-bits", help="Keys and values so wide.")] = None,
    from_run: Annotated[
        str | None, typer.Option("--from-run", help="Instead of a device: the roof and utilization of this run.")
    ] = None,
    runs_dir: RunsDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """The floors of a decode, from shapes and figures alone, and what would move them. Nothing is run."""
    from harness.specs.plan import Scenario

    scenario = Scenario.model_validate(
        {
            "context": context,
            "batch": batch,
            "input_tokens": input_tokens,
            "tensor_parallel": tensor_parallel,
            "weight_bits": _int(weight_bits),
            "kv_bits": _int(kv_bits),
        }
    )
    plans = _plans(model, scenario, device or [], from_run, runs_dir)
    if len(plans) == 1:
        _show_one(plans[0], format)
    else:
        _show_several(plans, format)


def _plans(
    model: str, scenario: "Scenario", devices: "Sequence[str]", run: str | None, runs_dir: "Path | None"
) -> "list[Plan]":
    from harness.devices.datasheet import load_device_spec
    from harness.errors import ConfigError
    from harness.models import resolve_model
    from harness.plan.row import plan_from_run, plan_on_devices
    from harness.records import find_run, load_bench
    from harness.records import runs_dir as resolve

    if bool(devices) == bool(run):
        raise ConfigError(
            "a plan is for devices or from a run", "give either --device (harness devices) or --from-run (harness runs)"
        )
    if run:
        return [plan_from_run(resolve_model(model), scenario, load_bench(find_run(resolve(runs_dir), run)))]
    return plan_on_devices(resolve_model(model), scenario, [load_device_spec(name) for name in devices])


def _int(bits: Bits | None) -> int | None:
    return None if bits is None else int(bits.value)


def _show_one(p: "Plan", format: Format) -> None:
    from harness.cli.plan_lines import plan_lines, plan_title, what_if_rows
    from harness.cli.render import show, show_object

    show_object(p.model_dump(mode="json"), format, plan_lines(p), title=plan_title(p, f"{p.model} on {p.device}"))
    if format in (Format.table, Format.md):
        typer.echo()
        show(what_if_rows(p), format)


def _show_several(plans: "Sequence[Plan]", format: Format) -> None:
    from harness.cli.plan_lines import device_row, plan_title
    from harness.cli.render import show

    readable = format in (Format.table, Format.md)
    rows = [device_row(p) if readable else p.model_dump(mode="json") for p in plans]
    show(rows, format, title=plan_title(plans[0], plans[0].model))

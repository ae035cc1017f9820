"""`harness plan MODEL --device D --context N`."""

from typing import Annotated

import typer

from harness.cli.options import Format, FormatOption


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("plan")(plan)


def plan(
    model: Annotated[str, typer.Argument(help="A known name, a checkpoint's folder, or a config.json.")],
    device: Annotated[str, typer.Option("--device", help="A known device or a device's YAML file (harness devices).")],
    context: Annotated[int, typer.Option("--context", min=1, help="Positions that the step attends to.")] = 1024,
    format: FormatOption = Format.table,
) -> None:
    """The floor of a decode step, from shapes and published figures. Nothing is run."""
    from harness.cli.render import show_object
    from harness.devices.datasheet import load_device_spec
    from harness.models import resolve_model
    from harness.plan import make_plan
    from harness.units import gb_per_s, ms, num_bytes, percent

    p = make_plan(resolve_model(model), load_device_spec(device), context)
    fits = {True: "yes", False: "NO", None: "not known"}[p.fits_in_memory]
    weights_share = percent(p.weight_read_bytes / p.step_bytes)
    lines = [
        ("floor", f"{ms(p.floor_s)} a token, {p.floor_tokens_per_s:.2f} tokens/s at the most"),
        ("bytes a step", f"{num_bytes(p.step_bytes)}, {weights_share} of it weights"),
        ("weights read", f"{p.weight_read_bytes:,} B of {p.resident_weight_bytes:,} B resident"),
        ("cache", f"{p.kv_bytes_per_context_token:,} B a position, {num_bytes(p.kv_cache_bytes)} at {p.context:,}"),
        ("state", f"{p.state_read_bytes:,} B read and as much written, at any context" if p.state_read_bytes else "-"),
        ("fits in memory", fits),
        ("roof", f"{gb_per_s(p.roof_read_bytes_per_s)}{' (unverified)' if p.roof_unverified else ''}: {p.roof_source}"),
        ("compute floor", ms(p.compute_floor_s)),
        ("ridge", f"{p.ridge_flop_per_byte:.0f} FLOP a byte; this step does {p.step_flop / p.step_bytes:.2f}"
         if p.ridge_flop_per_byte else "-"),
    ]  # fmt: skip
    show_object(p.model_dump(mode="json"), format, lines, title=f"{p.model} on {p.device}, context {p.context:,}")

"""`harness doctor|probe|backends|devices|schema`: what is here, and how fast memory is."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Format, FormatOption, tell

if TYPE_CHECKING:
    from harness.specs.build import Build


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (doctor, probe, backends, devices, schema):
        app.command(command.__name__)(command)


def doctor(
    all_: Annotated[bool, typer.Option("--all", help="A row for each thing that was looked for.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """What this machine has of what the harness uses: one line, or all of it."""
    import dataclasses

    from harness.cli.render import show
    from harness.doctor import examine, one_line

    findings = examine()
    if all_ or format is not Format.table:
        show([dataclasses.asdict(finding) for finding in findings], format)
    else:
        typer.echo(one_line(findings))


def probe(
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda (ROCm and DCU too).")] = "auto",
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU: threads [one a physical core].")] = None,
    format: FormatOption = Format.table,
) -> None:
    """How fast this machine reads memory, proven by a checksum: the roof of every verdict."""
    from harness.cli.render import show_object
    from harness.report.probe import probe_this_machine
    from harness.units import flop_per_s, gb_per_s, num_bytes

    report = probe_this_machine(device, threads, tell)
    curve = ", ".join(f"{point.num_threads}: {gb_per_s(point.read_bytes_per_s)}" for point in report.thread_curve)
    peaks = ", ".join(
        f"{dtype} {flop_per_s(peak)} (in {report.peak_arithmetic.get(dtype, dtype)})"
        for dtype, peak in report.peak_flop_per_s.items()
    )
    lines = [
        (
            "read",
            f"{gb_per_s(report.read_bytes_per_s)} ({report.method}, {report.variant}, {report.num_threads} threads)",
        ),
        ("buffer", f"{num_bytes(report.buffer_bytes)}{', huge pages' if report.huge_pages else ''}"),
        ("copy", gb_per_s(report.copy_bytes_per_s)),
        ("write", gb_per_s(report.write_bytes_per_s)),
        ("by threads", curve or "-"),
        ("matrix product", peaks or "-"),
        ("first probe here", gb_per_s(report.baseline_read_bytes_per_s)),
    ]
    show_object(report.model_dump(mode="json"), format, lines, title="memory probe")


def backends(
    build: Annotated[bool, typer.Option("--build", help="Compile ahead what first uses would compile.")] = False,
    target: Annotated[
        list[str] | None, typer.Option("--target", help="cpu, sm_90, gfx90a, ... (repeatable) [this machine's].")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Triton's kernels too, for a model's problems.")] = None,
    selection: Annotated[
        Path | None, typer.Option("--selection", help="Triton's kernels too, those that a selection table names.")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Every backend: what it is, whether the contest allows it, whether it runs here; or what they need, built."""
    from harness.cli.render import show
    from harness.errors import ConfigError

    if build:
        _build(target or (), model, selection, format)
        return
    if target or model or selection:
        raise ConfigError("--target, --model and --selection say what to build", "add --build")
    from harness.report.backends import backend_rows

    show(backend_rows(), format)


def _build(targets: "Sequence[str]", model: str | None, selection: Path | None, format: Format) -> None:
    """Build, show what came of it, and fail where a compiler did."""
    from harness.cli.render import show
    from harness.errors import UnavailableError
    from harness.prebuild import prebuild

    builds = list(prebuild(targets, model, selection, tell))
    show(build_table(builds) if format is Format.table else [build.model_dump() for build in builds], format)
    failed = [f"{build.kernel} for {build.target}" for build in builds if build.outcome == "failed"]
    if failed:
        what = f"{len(failed)} of {len(builds)} could not be built: {', '.join(failed[:3])}"
        raise UnavailableError(what, "see why in the rows; what else was built stays")


def build_table(builds: "Sequence[Build]") -> list[dict[str, Any]]:
    """Builds as people read them."""
    from harness.units import MISSING, num_bytes

    return [
        {
            "target": build.target,
            "what": build.what,
            "kernel": build.kernel,
            "outcome": build.outcome if build.why is None else f"{build.outcome}: {build.why}",
            "seconds": MISSING if build.time_s is None else f"{build.time_s:.1f}",
            "size": num_bytes(build.num_bytes),
        }
        for build in builds
    ]


def devices(format: FormatOption = Format.table) -> None:
    """The devices that `plan` knows, with their figures; each figure's source stands in its file."""
    from harness.cli.render import show
    from harness.report.devices import device_rows

    show(device_rows(), format)


def schema(name: Annotated[str, typer.Argument(help="run, record, event, ab-record, ab-event or device.")]) -> None:
    """Print the JSON schema of a file the harness reads or writes; the descriptions are the documentation."""
    import json

    from harness.report.schemas import json_schema

    typer.echo(json.dumps(json_schema(name), indent=2, ensure_ascii=False))

"""The data sheets under configs/devices: complete, sourced, and honest about what nobody publishes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness import units
from harness.config_io import load_yaml_model
from harness.specs.device import DeviceSpec, SourcedFigure
from harness.specs.tensor import DTYPE_BITS

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs/devices").glob("*.yaml"))
SPECS = {path.stem: load_yaml_model(path, DeviceSpec) for path in FILES}
FIGURES = ("memory_bytes", "last_level_cache_bytes", "memory_bytes_per_s", "read_probe_bytes_per_s")


def figures(spec: DeviceSpec) -> Iterator[tuple[str, SourcedFigure]]:
    for key in FIGURES:
        yield key, getattr(spec, key)
    if spec.link_bytes_per_s is not None:
        yield "link_bytes_per_s", spec.link_bytes_per_s
    yield from spec.peak_flop_per_s.items()


def test_the_devices_that_are_promised() -> None:
    promised = {"cpu-generic", "a100", "h100", "h200", "mi250x", "mi300x", "z100", "k100-ai", "bw-gfx936"}
    assert promised <= set(SPECS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_name_is_the_files(path: Path) -> None:
    assert SPECS[path.stem].name == path.stem


@pytest.mark.parametrize("name", SPECS)
def test_every_figure_has_a_source_and_every_null_its_reason(name: str) -> None:
    for key, figure in figures(SPECS[name]):
        assert len(figure.source.split()) >= 3, key
        if figure.value is None:
            reasons = (
                "nobody publishes",
                "publishes no",
                "no such device was measured",
                "differs with",
                "no one figure",
            )
            assert any(reason in figure.source for reason in reasons), key


@pytest.mark.parametrize("name", SPECS)
def test_figures_are_plausible_si_values(name: str) -> None:
    """A wrong power of ten, GB for GB/s or TFLOP/s for FLOP/s, would pass the schema."""
    spec = SPECS[name]
    bounds = {
        "memory_bytes": (1e9, 1e12),
        "last_level_cache_bytes": (1e6, 1e9),
        "memory_bytes_per_s": (1e11, 2e13),
        "read_probe_bytes_per_s": (1e9, 2e13),
        "link_bytes_per_s": (1e10, 1e12),
    }
    for key, figure in figures(spec):
        low, high = bounds.get(key, (1e12, 1e17))
        assert figure.value is None or low <= figure.value <= high, key
    assert set(spec.peak_flop_per_s) <= set(DTYPE_BITS)


@pytest.mark.parametrize("name", SPECS)
def test_nothing_is_verified_before_a_card_confirmed_it(name: str) -> None:
    for key, figure in figures(SPECS[name]):
        assert figure.unverified, f"{key}: set this only with the record that confirms it, and mend this test then"


def test_no_data_sheet_bandwidth_where_no_data_sheet_exists() -> None:
    for name in ("z100", "k100-ai", "bw-gfx936", "cpu-generic"):
        assert SPECS[name].memory_bytes_per_s.value is None
    # The best read that was reported there is a kernel's: 34816 x 5120 weights of 2 bytes in 271 us.
    measured = SPECS["bw-gfx936"].read_probe_bytes_per_s.value
    assert measured == pytest.approx(34816 * 5120 * 2 / 271e-6, rel=1e-3)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0])
def test_a_figure_is_finite_or_null(value: float) -> None:
    with pytest.raises(ValidationError):
        SourcedFigure(value=value, source="a figure of this test")


def test_mi250x_is_one_die() -> None:
    spec = SPECS["mi250x"]
    assert "GCD" in spec.description
    assert spec.memory_bytes.value == 64 * 2**30
    assert spec.memory_bytes_per_s.value == 1.6e12
    assert spec.peak_flop_per_s["BF16"].value == 383.0e12 / 2


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "mi250x", "mi300x"])
def test_peaks_are_dense(name: str) -> None:
    """In BF16 these devices' ridge points are 120 to 295 FLOP a byte; with sparsity they would double."""
    spec = SPECS[name]
    bf16, bandwidth = spec.peak_flop_per_s["BF16"].value, spec.memory_bytes_per_s.value
    assert bf16 is not None and bandwidth is not None
    assert 100 < bf16 / bandwidth < 310


def test_a_link_is_one_direction() -> None:
    """Data sheets count both: 600 GB/s of third-generation NVLink, 900 of the fourth."""
    links = {name: spec.link_bytes_per_s.value for name, spec in SPECS.items() if spec.link_bytes_per_s is not None}
    assert links == {"a100": 600e9 / 2, "h100": 900e9 / 2, "h200": 900e9 / 2}


def table() -> str:
    """The table of docs/devices.md as the files have it."""
    lines = [
        "| device | arch | memory | last-level cache | data sheet | best read measured | BF16, dense |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, spec in sorted(SPECS.items()):
        bf16 = spec.peak_flop_per_s.get("BF16")
        cells = [
            f"`{name}`",
            spec.arch or units.MISSING,
            units.num_bytes(spec.memory_bytes.value),
            units.num_bytes(spec.last_level_cache_bytes.value),
            units.gb_per_s(spec.memory_bytes_per_s.value),
            units.gb_per_s(spec.read_probe_bytes_per_s.value),
            units.flop_per_s(bf16.value if bf16 else None),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_documents_table_is_the_files() -> None:
    assert table() in (ROOT / "docs/devices.md").read_text(), f"docs/devices.md should hold:\n{table()}"

"""Which data sheet a device gets: its own or none."""

from pathlib import Path

import pytest

from harness.devices import datasheet
from harness.devices.datasheet import load_device_spec, match_device
from harness.errors import ConfigError
from harness.specs.device import DeviceInfo

FOLDER = Path(__file__).resolve().parents[2] / "configs/devices"
SHEETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))

MI300X = DeviceInfo(kind="rocm", name="AMD Instinct MI300X", arch="gfx942:sramecc+:xnack-", num_compute_units=304)
H100 = DeviceInfo(kind="cuda", name="NVIDIA H100 80GB HBM3", arch="sm_90", num_compute_units=132)
BW = DeviceInfo(kind="dcu", name="BW", arch="gfx936:sramecc+:xnack-", num_compute_units=80)
MI250X = DeviceInfo(kind="rocm", name="AMD Instinct MI250X/MI250", arch="gfx90a", num_compute_units=110)


@pytest.mark.parametrize("name", SHEETS)
def test_every_known_name_loads(name: str) -> None:
    assert load_device_spec(name).name == name


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"bw-gfx936.*mi300x"):
        load_device_spec("mi9000")


def test_a_file_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "mycard.yaml"
    text = (FOLDER / "h100.yaml").read_text()
    path.write_text(text.replace("name: h100", "name: mycard"))
    assert load_device_spec(str(path)).name == "mycard"


def test_a_copied_file_that_kept_its_old_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mycard.yaml"
    path.write_text((FOLDER / "h100.yaml").read_text())
    with pytest.raises(ConfigError, match=r"'h100'.*mycard"):
        load_device_spec(str(path))


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_device_spec(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    ("info", "sheet"),
    [
        (DeviceInfo(kind="cpu", name="Intel(R) Xeon(R) Processor", arch="x86_64"), "cpu-generic"),
        (DeviceInfo(kind="cuda", name="NVIDIA A100-SXM4-80GB", arch="sm_80", num_compute_units=108), "a100"),
        (H100, "h100"),
        (DeviceInfo(kind="cuda", name="NVIDIA H200", arch="sm_90", num_compute_units=132), "h200"),
        (MI250X, "mi250x"),
        (MI300X, "mi300x"),
        (MI300X.model_copy(update={"name": "AMD Instinct MI300X VF"}), "mi300x"),
        (DeviceInfo(kind="dcu", name="Z100L", arch="gfx906"), "z100"),
        (DeviceInfo(kind="dcu", name="K100_AI", arch="gfx928:sramecc+:xnack-"), "k100-ai"),
        (BW, "bw-gfx936"),
    ],
)
def test_known_devices(info: DeviceInfo, sheet: str) -> None:
    spec = match_device(info)
    assert spec is not None and spec.name == sheet


@pytest.mark.parametrize(
    "info",
    [
        pytest.param(DeviceInfo(kind="rocm", name="AMD Radeon Graphics", arch="gfx1151"), id="unknown HIP device"),
        pytest.param(MI300X.model_copy(update={"name": "AMD Instinct MI325X"}), id="same arch, faster memory"),
        pytest.param(MI300X.model_copy(update={"name": "AMD Instinct MI300A"}), id="same arch, an APU"),
        pytest.param(MI300X.model_copy(update={"arch": "gfx936"}), id="name and arch disagree"),
        pytest.param(MI300X.model_copy(update={"arch": None}), id="arch not read"),
        pytest.param(MI300X.model_copy(update={"num_compute_units": 38}), id="CPX partition"),
        pytest.param(MI300X.model_copy(update={"num_compute_units": None}), id="size not read"),
        pytest.param(MI250X.model_copy(update={"num_compute_units": 104}), id="MI250 under the shared name"),
        pytest.param(H100.model_copy(update={"name": "NVIDIA H100 PCIe", "num_compute_units": 114}), id="H100 PCIe"),
        pytest.param(H100.model_copy(update={"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}), id="MIG slice, by name"),
        pytest.param(H100.model_copy(update={"num_compute_units": 16}), id="MIG slice, by size"),
        pytest.param(DeviceInfo(kind="cuda", name="NVIDIA A100-SXM4-40GB", arch="sm_80"), id="A100 40 GB"),
        pytest.param(DeviceInfo(kind="rocm", name="AMD Radeon VII", arch="gfx906"), id="AMD's gfx906"),
        pytest.param(DeviceInfo(kind="dcu", name="K100", arch="gfx926"), id="K100, not K100_AI"),
        pytest.param(BW.model_copy(update={"name": "BW1100", "arch": "gfx938"}), id="BW1100"),
        pytest.param(DeviceInfo(kind="scripted", name="scripted", arch="sm_90"), id="a test's device"),
    ],
)
def test_anything_else_gets_no_data_sheet(info: DeviceInfo) -> None:
    assert match_device(info) is None


def test_every_signature_names_a_data_sheet_of_its_arch_and_vendor() -> None:
    kinds = {"nvidia": "cuda", "amd": "rocm", "hygon": "dcu"}
    for known in datasheet._SIGNATURES:
        spec = load_device_spec(known.sheet)
        assert (spec.arch, kinds[spec.vendor]) == (known.arch, known.kind)


def test_every_gpu_data_sheet_can_be_matched() -> None:
    sheets = {known.sheet for known in datasheet._SIGNATURES}
    assert sheets == set(SHEETS) - {"cpu-generic"}

"""Tables on disk: what is written comes back, what is foreign, corrupt or edited is refused."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness.errors import ConfigError
from harness.selection import foreign, load_fitting, load_table, save_entries, software_versions, table_path
from harness.specs.device import DeviceInfo
from harness.specs.problem import LinearProblem
from harness.specs.selection import Evidence, SelectionEntry

DEVICE = DeviceInfo(kind="cpu", name="A test's CPU(R) @ 2", arch="x86_64")
LINEAR = LinearProblem(m=1, n=8, k=8, dtype="BF16")
ENTRY = SelectionEntry(
    op="linear", role="o", problem=LINEAR, backend="torch", parameters={"wave": 64}, contest_legal=True,
    evidence=Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch", ratio_interval=(1.1, 1.2)),
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b" / "m-bf16.yaml"
    save_entries(path, [ENTRY], "m", "BF16", DEVICE)
    return path


def test_a_table_comes_back_as_it_was(path: Path) -> None:
    table = load_table(path)
    assert table.entries == (ENTRY,)
    assert (table.model, table.dtype, table.device) == ("m", "BF16", DEVICE)
    assert table.versions == software_versions()
    assert "compiler" in table.versions or "kernels" in table.versions
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing half-written is left"


def test_saving_again_merges(path: Path) -> None:
    other = ENTRY.model_copy(update={"problem": LINEAR.model_copy(update={"m": 2})})
    replaced = ENTRY.model_copy(update={"backend": "cpu-gemv"})
    save_entries(path, [other, replaced], "m", "BF16", DEVICE)
    assert load_table(path).entries == (replaced, other)


def test_a_workers_table_is_not_the_whole_models(path: Path) -> None:
    """Whose shapes it lists is part of what it is: of its name, its fingerprint, and who takes it."""
    share = path.with_name("share.yaml")
    save_entries(share, [ENTRY], "m", "BF16", DEVICE, tensor_parallel=2)
    of_two, whole = load_table(share), load_table(path)
    assert (of_two.tensor_parallel, whole.tensor_parallel) == (2, 1)
    assert of_two.fingerprint != whole.fingerprint
    assert foreign(of_two, DEVICE, "BF16", 2) == foreign(whole, DEVICE, "BF16") == []
    with pytest.raises(ConfigError, match="measured elsewhere: tensor_parallel 2, here 1"):
        load_fitting(share, DEVICE, "BF16", force=False)
    for file, workers in ((path, 2), (share, 1), (share, 4)):
        with pytest.raises(ConfigError, match=f"here {workers}"):
            save_entries(file, [ENTRY], "m", "BF16", DEVICE, tensor_parallel=workers)


def test_a_table_from_before_there_were_workers_is_whole(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    assert data.pop("tensor_parallel") == 1
    content = load_table(path).model_dump(mode="json", exclude={"fingerprint", "tensor_parallel"})
    assert data["fingerprint"] == hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(yaml.safe_dump(data))
    assert load_table(path).tensor_parallel == 1
    path.write_text(yaml.safe_dump(data | {"tensor_parallel": 2}))
    with pytest.raises(ConfigError, match="fingerprint"):
        load_table(path)


def test_where_a_table_belongs() -> None:
    assert table_path(DEVICE, "qwen3-0.6b", "BF16") == Path("configs/selections/a-test-s-cpu-r-2/qwen3-0.6b-bf16.yaml")
    assert table_path(DEVICE, "m", "BF16", 2) == Path("configs/selections/a-test-s-cpu-r-2/m-bf16-tp2.yaml")
    dcu = DeviceInfo(kind="dcu", name="BW1000", arch="gfx936")
    assert table_path(dcu, "/models/Qwen3/config.json", "F16") == Path("configs/selections/gfx936/Qwen3-f16.yaml")


def test_a_models_name_is_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called from: `.`, its config.json, a path with dots."""
    for folder in ("mid", "other/mid"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "mid")
    called = (".", "config.json", "../mid", "../mid/config.json", str(tmp_path / "mid"))
    assert {table_path(DEVICE, model, "BF16").name for model in called} == {"mid-bf16.yaml"}
    path = tmp_path / "mid-bf16.yaml"
    for model in called:
        save_entries(path, [ENTRY], model, "BF16", DEVICE)
    assert load_table(path).model == str(tmp_path / "mid")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"is of {tmp_path}/mid, not of {tmp_path}/other/mid") as found:
        save_entries(path, [ENTRY], "../other/mid", "BF16", DEVICE)
    assert "move it away" in found.value.mend and path.read_bytes() == before


KNOWN = DEVICE.model_copy(
    update={"features": ("avx2", "avx512f"), "num_compute_units": 8, "last_level_cache_bytes": 1 << 25}
)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"features": ("avx2",)}, "features avx2 avx512f, here avx2"),
        ({"features": ()}, "features avx2 avx512f, here none"),
        ({"num_compute_units": 64}, "compute units 8, here 64"),
        ({"last_level_cache_bytes": 1 << 20}, "last-level cache bytes 33554432, here 1048576"),
        ({"num_compute_units": None, "last_level_cache_bytes": None, "memory_bytes": 1}, None),
    ],
)
def test_a_name_alone_is_no_device(tmp_path: Path, change: dict[str, object], what: str | None) -> None:
    """A virtual machine's is that of a family of processors. What one side could not read is no difference."""
    save_entries(tmp_path / "t.yaml", [ENTRY], "m", "BF16", KNOWN)
    found = foreign(load_table(tmp_path / "t.yaml"), KNOWN.model_copy(update=change), "BF16")
    assert found == ([] if what is None else [what])


@pytest.mark.parametrize(
    ("device", "dtype", "what"),
    [
        (DEVICE.model_copy(update={"name": "another"}), "BF16", "device"),
        (DEVICE.model_copy(update={"kind": "cuda"}), "BF16", "device"),
        (DEVICE, "F32", "dtype"),
    ],
)
def test_a_foreign_table_is_refused_unless_forced(path: Path, device: DeviceInfo, dtype: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as found:
        load_fitting(path, device, dtype, force=False)
    assert "selection_force" in found.value.mend
    table, differences = load_fitting(path, device, dtype, force=True)
    assert table.entries == (ENTRY,)
    assert len(differences) == 1 and what in differences[0]


@pytest.mark.parametrize("key", ["torch", "compiler", "kernels", "llm-decode-harness"])
def test_other_software_is_foreign(path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    assert foreign(load_table(path), DEVICE, "BF16") == []
    monkeypatch.setattr("harness.selection.software_versions", lambda: load_table(path).versions | {key: "other"})
    with pytest.raises(ConfigError, match=f"{key} .*here other"):
        load_fitting(path, DEVICE, "BF16", force=False)
    with pytest.raises(ConfigError, match=key):
        save_entries(path, [ENTRY], "m", "BF16", DEVICE)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data["entries"][0].update(backend="cpu-gemv"), "fingerprint"),
        (lambda data: data["entries"][0]["evidence"].update(call_s=1e-9), "fingerprint"),
        (lambda data: data.update(fingerprint=""), "fingerprint"),
        (lambda data: data["entries"][0].pop("backend"), "backend"),
        (lambda data: data["entries"][0]["problem"].update(n=0), "greater than 0"),
        (lambda data: data["entries"][0]["problem"].update(n=-8), "greater than 0"),
        (lambda data: data.update(schema_version=2), "schema_version"),
        (lambda data: data.update(extra=1), "extra"),
    ],
)
def test_a_corrupt_table_is_refused(path: Path, change: object, what: str) -> None:
    data = yaml.safe_load(path.read_text())
    change(data)  # type: ignore[operator]
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError) as found:
        load_table(path)
    assert re.search(what, found.value.what)


@pytest.mark.parametrize("damage", [lambda text: text[:200], lambda text: b"\xff\x00" + text, lambda text: b"- 1"])
def test_a_damaged_table_is_measured_again_and_never_mended(path: Path, damage: Callable[[bytes], bytes]) -> None:
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError) as found:
        load_table(path)
    assert found.value.mend.startswith("measure again with `harness ab ... --save`, or move it away")


def test_a_table_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as found:
        load_table(path.with_name("absent.yaml"))
    assert found.value.mend == "give a file that can be read"


def test_a_folder_that_cannot_be_written_loses_nothing(path: Path) -> None:
    (path.parent / "file").write_text("")
    with pytest.raises(ConfigError):
        save_entries(path.parent / "file" / "t.yaml", [ENTRY], "m", "BF16", DEVICE)

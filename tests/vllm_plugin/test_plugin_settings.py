"""What the environment asks of the plugin, and what it costs where it asks nothing."""

import ast
import importlib.metadata
import json
import subprocess
import sys
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import harness.vllm_plugin
from harness.errors import ConfigError, UnavailableError
from harness.selection import save_entries
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem
from harness.specs.selection import Evidence, SelectionEntry
from harness.vllm_plugin import install
from harness.vllm_plugin.settings import Settings, read_settings

DEVICE = DeviceInfo(kind="cpu", name="a test's CPU", arch="x86_64")
ENTRY = SelectionEntry(
    op="linear", role="o", problem=LinearProblem(m=1, n=8, k=8, dtype="BF16"), backend="torch", contest_legal=True,
    evidence=Evidence(run_id="r", outcome="winner", call_s=1e-3, baseline="torch"),
)  # fmt: skip
DELTA_ENTRY = ENTRY.model_copy(
    update={
        "op": "linear-attention", "backend": "torch-recurrent",
        "problem": DeltaProblem(
            m=1, num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=32, conv_kernel=4, dtype="BF16"
        ),
    }
)  # fmt: skip
ATTENTION_ENTRY = ENTRY.model_copy(
    update={
        "op": "attention", "backend": "gpu-decode",
        "problem": AttentionProblem(m=1, num_heads=2, num_kv_heads=1, head_dim=64, max_context=9, dtype="BF16"),
    }
)  # fmt: skip
REPLACEMENTS = (*install.ON_CPU.values(), *install.ON_GPU.values())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    save_entries(tmp_path / "t.yaml", [ENTRY], "m", "BF16", DEVICE)
    return tmp_path / "t.yaml"


def test_without_a_selection_nothing_is_loaded() -> None:
    code = "import sys, json, harness.vllm_plugin as p; p.register(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    loaded = {name for name in json.loads(done.stdout) if name.startswith(("harness", "torch", "vllm", "pydantic"))}
    assert loaded == {"harness", "harness.vllm_plugin"}


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="llm-decode-harness")
    assert found.load() is harness.vllm_plugin.register


def test_what_the_environment_says() -> None:
    assert read_settings({}) is None
    assert read_settings({"HARNESS_SELECTION": "", "HARNESS_CONTEST": "1"}) is None
    assert read_settings({"HARNESS_SELECTION": "a.yaml"}) == Settings((Path("a.yaml"),))
    everything = {
        "HARNESS_SELECTION": "a.yaml:b/c.yaml", "HARNESS_SELECTION_FORCE": "1", "HARNESS_CONTEST": "1",
        "HARNESS_PLUGIN_REPORT": "r",
    }  # fmt: skip
    assert read_settings(everything) == Settings((Path("a.yaml"), Path("b/c.yaml")), True, True, Path("r"))


@pytest.mark.parametrize("name", ["HARNESS_CONTEST", "HARNESS_SELECTION_FORCE"])
def test_a_switch_is_on_or_off(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 'yes'"):
        read_settings({"HARNESS_SELECTION": "a.yaml", name: "yes"})


def test_a_foreign_table_is_refused_unless_forced(table: Path) -> None:
    settings = Settings((table,))
    tables = settings.load()
    assert settings.check(tables, DEVICE, "BF16") == ()
    elsewhere = DEVICE.model_copy(update={"name": "another"})
    for device, dtype, what in ((elsewhere, "BF16", "device"), (DEVICE, "F32", "dtype")):
        with pytest.raises(ConfigError, match=f"{table.name} was measured elsewhere: {what}.*FORCE=1"):
            settings.check(tables, device, dtype)
        (note,) = Settings((table,), force=True).check(tables, device, dtype)
        assert what in note
    with pytest.raises(ConfigError, match=r"elsewhere: tensor_parallel 1, here 2 .*linear --tensor-parallel 2 --save"):
        settings.check(tables, DEVICE, "BF16", tensor_parallel=2)


def test_the_cores_that_vllm_leaves_a_worker_are_not_the_machines(tmp_path: Path) -> None:
    """An A/B has all of them, with all their caches; what a core can do is the same."""
    whole = DEVICE.model_copy(
        update={"num_compute_units": 64, "last_level_cache_bytes": 1 << 28, "features": ("avx2",)}
    )
    save_entries(tmp_path / "t.yaml", [ENTRY], "m", "BF16", whole)
    settings = Settings((tmp_path / "t.yaml",))
    tables = settings.load()
    share = whole.model_copy(update={"num_compute_units": 1, "last_level_cache_bytes": 1 << 25})
    assert settings.check(tables, share, "BF16") == ()
    with pytest.raises(ConfigError, match="features avx2, here none"):
        settings.check(tables, share.model_copy(update={"features": ()}), "BF16")
    card = {"kind": "cuda", "num_compute_units": 132}
    save_entries(tmp_path / "card.yaml", [ENTRY], "m", "BF16", whole.model_copy(update=card))
    settings = Settings((tmp_path / "card.yaml",))
    with pytest.raises(ConfigError, match="compute units 132, here 66"):
        settings.check(settings.load(), whole.model_copy(update=card | {"num_compute_units": 66}), "BF16")


def test_the_start_stops_at_a_file_that_is_no_table(tmp_path: Path, vllm_names: SimpleNamespace) -> None:
    vllm_names.environment("HARNESS_SELECTION", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none.yaml: No such file"):
        harness.vllm_plugin.register()
    assert not vllm_names.replaced


def test_registering_twice_replaces_once(table: Path, vllm_names: SimpleNamespace) -> None:
    vllm_names.environment("HARNESS_SELECTION", str(table))
    harness.vllm_plugin.register()
    harness.vllm_plugin.register()
    assert vllm_names.replaced == ["layers"]


def test_what_no_table_lists_is_not_asked_for(tmp_path: Path, table: Path, vllm_names: SimpleNamespace) -> None:
    """A vLLM without a gated delta rule runs linears."""
    module = f"{install.LAYERS}.mamba.ops.cpu.gdn_attention"
    vllm_names.remove(module, "cpu_gdn_attention_core")
    vllm_names.environment("HARNESS_SELECTION", str(table))
    harness.vllm_plugin.register()
    save_entries(tmp_path / "d.yaml", [DELTA_ENTRY], "m", "BF16", DEVICE)
    vllm_names.environment("HARNESS_SELECTION", f"{table}:{tmp_path / 'd.yaml'}")
    with pytest.raises(UnavailableError, match=rf"lacks {module}.cpu_gdn_attention_core \(the plugin was made"):
        harness.vllm_plugin.register()
    assert vllm_names.replaced == ["layers"]
    sys.modules[module].cpu_gdn_attention_core = None  # type: ignore[attr-defined]
    harness.vllm_plugin.register()
    assert vllm_names.replaced == ["layers", "delta_layers"]


def test_a_gpu_has_replacements_of_its_own(tmp_path: Path, table: Path, vllm_names: SimpleNamespace) -> None:
    """And none for the gated delta rule, which stays vLLM's there."""
    save_entries(tmp_path / "d.yaml", [DELTA_ENTRY, ATTENTION_ENTRY], "m", "BF16", DEVICE)
    vllm_names.environment("HARNESS_SELECTION", f"{table}:{tmp_path / 'd.yaml'}")
    vllm_names.device("cuda")
    vllm_names.remove_module("vllm.v1.attention.backends.cpu_attn")
    harness.vllm_plugin.register()
    assert vllm_names.replaced == ["layers", "gpu_attention"]
    vllm_names.device("cpu")
    with pytest.raises(UnavailableError, match=r"lacks vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"):
        harness.vllm_plugin.register()


def test_a_name_that_vllm_lacks_is_named(table: Path, vllm_names: SimpleNamespace) -> None:
    install.check_names(install.ON_CPU)
    vllm_names.environment("HARNESS_SELECTION", str(table))
    linear = f"{install.LAYERS}.linear"
    vllm_names.remove(linear, "RowParallelLinear")
    with pytest.raises(UnavailableError, match=rf"lacks {linear}.RowParallelLinear.register_oot \(the plugin was made"):
        harness.vllm_plugin.register()
    vllm_names.remove_module("vllm.config")
    with pytest.raises(
        UnavailableError,
        match=r"lacks vllm.config.get_current_vllm_config_or_none, .*RowParallelLinear",
    ):
        install.check_names(["linear"])
    assert not vllm_names.replaced


def test_a_field_of_a_steps_metadata_that_vllm_lacks_is_named(vllm_names: SimpleNamespace) -> None:
    """A dataclass has fields without a default only in its instances, of which there is none yet."""
    module = "vllm.v1.attention.backends.cpu_attn"
    kept = make_dataclass("CPUAttentionMetadata", ["query_start_loc", "seq_lens"])
    sys.modules[module].CPUAttentionMetadata = kept  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError, match=rf"lacks {module}.CPUAttentionMetadata.block_table \(the plugin"):
        install.check_names(["attention"])


def test_every_name_that_is_imported_is_checked() -> None:
    folder = Path(harness.vllm_plugin.__file__).parent
    imported = {
        (node.module, alias.name)
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm")
        for alias in node.names
    }
    assert len(imported) > 5
    needed = [item for one in REPLACEMENTS for item in one.needed.items()]
    assert imported <= {(module, name.partition(".")[0]) for module, names in needed for name in names}


@pytest.fixture
def vllm_names(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A vLLM of nothing but the names that are needed, and what replaced its layers."""
    replaced: list[str] = []
    stand_ins: dict[str, ModuleType] = {}
    for module, names in [item for one in REPLACEMENTS for item in one.needed.items()]:
        stand_in = stand_ins.setdefault(module, ModuleType(module))
        for name in names:
            first, _, second = name.partition(".")
            owner = getattr(stand_in, first, SimpleNamespace())
            setattr(stand_in, first, owner)
            if second:
                setattr(owner, second, None)
        monkeypatch.setitem(sys.modules, module, stand_in)
    for name in {one.module for one in REPLACEMENTS}:
        layers = ModuleType(name)
        layers.replace_layers = partial(replaced.append, name.rpartition(".")[2])  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, layers)
    platform = sys.modules["vllm.platforms"].current_platform
    platform.device_type = "cpu"
    install._replace_layers.cache_clear()

    def remove_module(name: str) -> None:
        monkeypatch.setitem(sys.modules, name, None)

    yield SimpleNamespace(
        replaced=replaced, environment=monkeypatch.setenv, remove_module=remove_module,
        device=partial(setattr, platform, "device_type"),
        remove=lambda module, name: monkeypatch.delattr(sys.modules[module], name),
    )  # fmt: skip
    install._replace_layers.cache_clear()


def test_a_contest_takes_no_table_of_the_delta_rule(tmp_path: Path) -> None:
    """vLLM packs its convolution on some CPUs, and its parameters are in no hash."""
    save_entries(tmp_path / "d.yaml", [ENTRY, DELTA_ENTRY], "m", "BF16", DEVICE)
    for contest in (False, True):
        settings = Settings((tmp_path / "d.yaml",), contest=contest)
        if not contest:
            assert settings.check(settings.load(), DEVICE, "BF16") == ()
            continue
        with pytest.raises(ConfigError, match="lists the delta rule"):
            settings.check(settings.load(), DEVICE, "BF16")


def test_an_earlier_runs_folder_is_refused(tmp_path: Path, table: Path, vllm_names: SimpleNamespace) -> None:
    """Its switch and its counts would be ours. vLLM's other processes come to a folder that ours have begun."""
    folder = tmp_path / "report"
    vllm_names.environment("HARNESS_SELECTION", str(table))
    vllm_names.environment("HARNESS_PLUGIN_REPORT", str(folder))
    vllm_names.environment("HARNESS_PLUGIN_CLAIMED", "another")  # and is put back behind this test
    harness.vllm_plugin.register()
    folder.mkdir()
    (folder / "7.json").write_text("{}")
    harness.vllm_plugin.register()
    vllm_names.environment("HARNESS_PLUGIN_CLAIMED", "another")
    with pytest.raises(ConfigError, match="has what an earlier run counted"):
        harness.vllm_plugin.register()

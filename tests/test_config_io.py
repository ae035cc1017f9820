"""Faults of a configuration name file, line and key; precedence is default, file, --set."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config_io import load_yaml_model
from harness.errors import ConfigError
from harness.specs.run import RunConfig

GOOD = """\
name: demo
model: qwen3-0.6b
engine:
  kind: native
  weights: synthetic
workload:
  input_tokens: 8
"""


def load(path: Path, text: str, *overrides: str) -> RunConfig:
    path.write_text(text)
    return load_yaml_model(path, RunConfig, overrides)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def refused(path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as fault:
        load(path, text, *overrides)
    assert "\n" not in fault.value.what
    assert "\n" not in fault.value.mend
    return f"{fault.value.what} | {fault.value.mend}"


def test_defaults_file_and_override_in_that_order(path: Path) -> None:
    assert load(path, GOOD).workload.repeats == 5
    assert load(path, GOOD + "  repeats: 7\n").workload.repeats == 7
    assert load(path, GOOD + "  repeats: 7\n", "workload.repeats=9").workload.repeats == 9
    assert load(path, GOOD, "gate.min_util_frac=0.5").gate.min_util_frac == 0.5


def test_unknown_key_names_line_and_what_is_allowed(path: Path) -> None:
    text = refused(path, GOOD.replace("weights:", "weigths:"))
    assert f"{path}:5" in text
    assert "engine.weigths" in text
    assert "did you mean 'weights'?" in text
    assert "prefill_chunk" in text
    assert "util_frac" not in text, "keys of another kind of engine are not allowed here"


def test_wrong_type_names_key_and_what_was_found(path: Path) -> None:
    text = refused(path, GOOD.replace("input_tokens: 8", "input_tokens: many"))
    assert f"{path}:7" in text
    assert "workload.input_tokens" in text
    assert "'many'" in text


@pytest.mark.parametrize("value", ["0", "-3", "1.5", ".nan", "true"])
def test_counts_are_whole_and_positive(path: Path, value: str) -> None:
    assert "workload.output_tokens" in refused(path, GOOD, f"workload.output_tokens={value}")


def test_missing_key_is_named(path: Path) -> None:
    assert "'model' is missing" in refused(path, GOOD.replace("model: qwen3-0.6b\n", ""))


def test_unknown_kind_of_engine_lists_the_known(path: Path) -> None:
    text = refused(path, GOOD.replace("kind: native", "kind: magic"))
    assert "native" in text
    assert "scripted" in text


def test_one_source_of_prompts(path: Path) -> None:
    assert "exactly one of prompts and input_tokens" in refused(path, GOOD, "workload.prompts=[hello]")
    assert "exactly one of prompts and input_tokens" in refused(path, GOOD, "workload.input_tokens=null")


def test_a_key_that_stands_twice_is_refused(path: Path) -> None:
    text = refused(path, GOOD + "  input_tokens: 9\n")
    assert f"{path}:8" in text
    assert "twice" in text


def test_a_bad_override_is_named_as_such(path: Path) -> None:
    assert "--set workload.repeat=3" in refused(path, GOOD, "workload.repeat=3")
    assert "key=value" in refused(path, GOOD, "workload.repeats")
    assert "key=value" in refused(path, GOOD, "workload..repeats=1")
    assert "holds a value" in refused(path, GOOD, "name.first=x")
    assert "not valid YAML" in refused(path, GOOD, "workload.repeats=2001-13-45")
    assert "--set gate.min_util_frac=-1" in refused(path, GOOD, "gate.min_util_frac=-1")
    assert "--set a.b.c=3" in refused(path, GOOD, "a.b.c=3")
    assert "--set engine.thread=3" in refused(path, GOOD, "engine.thread=3")


def test_aliases_are_refused_by_their_line(path: Path) -> None:
    """Thirty lines of them, each of the one before and itself, stand for a billion values."""
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 31))]
    assert f"{path}:2: not valid YAML: an alias (*a0)" in refused(path, "\n".join(lines))
    assert f"{path}:1: not valid YAML: an alias" in refused(path, "a: &a [*a]")
    assert "not valid YAML" in refused(path, GOOD, "name=[&a x, *a]")
    assert load(path, GOOD.replace("demo", "&name demo")).name == "demo", "an anchor alone harms nobody"


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_what_has_no_end_is_not_read(path: Path, device: str) -> None:
    path.symlink_to(device)
    with pytest.raises(ConfigError, match="not a file, but a device or a pipe"):
        load_yaml_model(path, RunConfig)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a file, but a device or a pipe"):
        load_yaml_model(path, RunConfig)


def test_a_file_longer_than_any_of_ours_is_not_read(path: Path) -> None:
    with path.open("w") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="1,099,511,627,776 B are more than 4,194,304"):
        load_yaml_model(path, RunConfig)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "just words",
        "a: [1",
        "\tname: x",
        "a: &x 1\nb: *y",
        "{}",
        "? [a]\n: 1",
        "a: 2001-13-01",
        "a: !!int x",
        "[" * 5000,
    ],
)
def test_not_a_configuration(path: Path, text: str) -> None:
    assert str(path) in refused(path, text)


def test_unreadable_files(tmp_path: Path) -> None:
    for place in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(ConfigError, match=str(place)):
            load_yaml_model(place, RunConfig)


def test_bytes_that_are_not_text(path: Path) -> None:
    path.write_bytes(b"name: \xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_yaml_model(path, RunConfig)


@given(st.text(alphabet="abn:-[]{}&*!|>'\"%@`#?,\n 01.~", max_size=60))
def test_any_text_gives_a_configuration_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_yaml_model(path, RunConfig)


def test_of_several_faults_the_first_is_named_and_the_others_counted(path: Path) -> None:
    assert "more)" not in refused(path, GOOD + "  a: 1\n")
    assert "(and 2 more)" in refused(path, GOOD + "  a: 1\n  b: 1\n  c: 1\n")


def test_a_fault_in_a_list_has_the_line_of_its_item(path: Path) -> None:
    prompts = GOOD.replace("  input_tokens: 8\n", "  prompts:\n    - one\n    - ''\n")
    text = refused(path, prompts)
    assert f"{path}:9" in text
    assert "workload.prompts.1" in text


def test_a_key_that_stands_twice_within_a_list_is_refused(path: Path) -> None:
    text = refused(path, GOOD + "  prompts:\n    - a: 1\n      a: 2\n")
    assert f"{path}:10" in text
    assert "twice" in text

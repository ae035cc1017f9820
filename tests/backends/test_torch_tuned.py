"""torch under TunableOp, with a scripted TunableOp in a real one's place: what tunes when, and what is on disk."""

import inspect
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from operand_checks import DTYPES, assert_right, linear  # noqa: E402  # behind the skip

from harness.backends.base import Executor  # noqa: E402
from harness.backends.linear import torch_linear, torch_tuned  # noqa: E402
from harness.backends.linear.torch_linear import TorchLinear  # noqa: E402
from harness.backends.linear.torch_tuned import TorchTuned  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402
from harness.specs.problem import LinearProblem  # noqa: E402
from harness.tunableop import Result, read_tunings, write_tunings  # noqa: E402

pytestmark = pytest.mark.torch

CARD = DeviceInfo(kind="rocm", name="a test's card", arch="gfx942")
EXECUTOR = Executor(CARD)
HERE = {"PT_VERSION": "2.13.0", "GCN_ARCH_NAME": "gfx942"}
NAMES = {torch.bfloat16: "BFloat16", torch.float16: "Half", torch.float32: "float"}


class ScriptedTunableOp:
    """As torch's: validators known after a first product, a file with others ignored, a shape tuned once."""

    def __init__(self, may_tune: bool = True) -> None:
        self.is_on, self.tunes, self.may_tune = False, True, may_tune
        self.known: dict[tuple[str, str], tuple[str, float]] = {}
        self.validators = {"PT_VERSION": HERE["PT_VERSION"]}
        self.filename = ""
        self.products: list[str] = []
        """What each product of torch was: plain, tuning, tuned or default."""
        self.memory: list[str] = []

    def enable(self, value: bool) -> None:
        self.is_on = value

    def tuning_enable(self, value: bool) -> None:
        self.tunes = value

    def set_filename(self, name: str) -> None:
        self.filename = name

    def get_validators(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.validators.items())

    def get_results(self) -> tuple[tuple[str, str, str, float], ...]:
        return tuple((*key, *found) for key, found in reversed(self.known.items()))

    def read_file(self, name: str) -> bool:
        lines = [line.split(",") for line in Path(name).read_bytes().decode().split("\n") if line]
        if {line[1]: line[2] for line in lines if line[0] == "Validator"} != self.validators:
            return False
        for line in lines:
            if line[0] != "Validator":
                self.known.setdefault((line[0], line[1]), (line[2], float(line[3])))
        return True

    def product(self, x: Any, weight: Any) -> None:
        """torch multiplies x [m, k] with weight [k, n]."""
        if not self.is_on:
            self.products.append("plain")
            return
        self.validators = HERE
        (m, k), n = x.shape, weight.shape[1]
        key = f"GemmTunableOp_{NAMES[x.dtype]}_TN", f"tn_{n}_{m}_{k}_ld_{k}_{k}_{n}"
        if key in self.known:
            self.products.append("tuned")
        elif self.tunes and self.may_tune:
            self.known[key] = (f"Gemm_Hipblaslt_{len(self.known)}", 0.25)
            self.products.append("tuning")
        else:
            self.products.append("default")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedTunableOp:
    return install(ScriptedTunableOp(), monkeypatch, tmp_path)


def install(fake: ScriptedTunableOp, monkeypatch: pytest.MonkeyPatch, folder: Path) -> ScriptedTunableOp:
    """torch's products go on being computed, and the fake hears of each."""
    mm, addmm = torch_linear.mm, torch_linear.addmm

    def heard_mm(x: Any, weight: Any, out: Any) -> None:
        fake.product(x, weight)
        mm(x, weight, out=out)

    def heard_addmm(bias: Any, x: Any, weight: Any, out: Any) -> None:
        fake.product(x, weight)
        addmm(bias, x, weight, out=out)

    monkeypatch.setattr(torch_linear, "mm", heard_mm)
    monkeypatch.setattr(torch_linear, "addmm", heard_addmm)
    monkeypatch.setattr(torch_tuned, "tunable", fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: fake.memory.append("waited"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fake.memory.append("given back"))
    monkeypatch.delenv("PYTORCH_TUNABLEOP_ENABLED", raising=False)
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", str(folder / "results.csv"))
    return fake


def bound(m: int = 1, n: int = 16, k: int = 8, dtype: Any = torch.bfloat16) -> tuple[TorchTuned, Any]:
    backend, name = TorchTuned(EXECUTOR), next(key for key, value in DTYPES.items() if value is dtype)
    problem = LinearProblem(m=m, n=n, k=k, dtype=name)
    x, weight, out = (torch.ones(shape, dtype=dtype) for shape in ((m, k), (n, k), (m, n)))
    return backend, backend.bind(x, backend.prepare(weight, None, problem), out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("m", [1, 5])
def test_it_is_torchs_product(scripted: ScriptedTunableOp, dtype: str, bias: bool, m: int) -> None:
    assert_right(TorchTuned, linear(m, 33, 31, dtype, bias), EXECUTOR)
    assert scripted.products[:3] == ["default", "tuning", "tuned"]  # the file is opened once, two places are one shape
    assert set(scripted.products[3:]) == {"tuned"}


def test_the_script_has_what_torch_has() -> None:
    for name in ("enable", "tuning_enable", "set_filename", "read_file", "get_validators", "get_results"):
        theirs, ours = (inspect.signature(getattr(one, name)) for one in (torch.cuda.tunable, ScriptedTunableOp()))
        assert len(theirs.parameters) >= len(ours.parameters)
        needed = [p for p in theirs.parameters.values() if p.default is inspect.Parameter.empty]
        assert len(needed) <= len(ours.parameters)


def test_binding_a_known_shape_again_multiplies_nothing(scripted: ScriptedTunableOp) -> None:
    backend, weight = TorchTuned(EXECUTOR), torch.ones((16, 8), dtype=torch.bfloat16)
    packed = backend.prepare(weight, None, LinearProblem(m=1, n=16, k=8, dtype="BF16"))
    for _ in range(3):
        launch = backend.bind(torch.ones((1, 8), dtype=torch.bfloat16), packed, torch.empty((1, 16)).bfloat16())
    assert scripted.products == ["default", "tuning"]
    launch()
    backend.bind(torch.ones((2, 8), dtype=torch.bfloat16), packed, torch.empty((2, 16)).bfloat16())
    assert scripted.products == ["default", "tuning", "tuned", "tuning"]


def test_binding_tunes_and_no_launch_does(scripted: ScriptedTunableOp) -> None:
    _, launch = bound()
    assert scripted.products == ["default", "tuning"]
    assert scripted.memory == ["waited", "given back"]  # or an A/B would take it for an undeclared copy
    scripted.known.clear()  # as if a launch met a shape that nobody knows
    launch()
    assert scripted.products[2:] == ["default"] and not scripted.tunes


def test_torch_beside_it_stays_what_it_is(scripted: ScriptedTunableOp) -> None:
    _, tuned = bound()
    x, weight, out = torch.ones(1, 8), torch.ones(16, 8), torch.empty(1, 16)
    torchs = TorchLinear(EXECUTOR)
    plain = torchs.bind(x, torchs.prepare(weight, None, LinearProblem(m=1, n=16, k=8, dtype="F32")), out)
    del scripted.products[:]
    for launch in (plain, tuned, plain, tuned):
        launch()
    assert scripted.products == ["plain", "tuned", "plain", "tuned"]


def test_a_product_that_raises_leaves_nothing_on(scripted: ScriptedTunableOp, monkeypatch: pytest.MonkeyPatch) -> None:
    _, launch = bound()
    monkeypatch.setattr(scripted, "product", lambda x, weight: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launch()
    assert not scripted.is_on
    with pytest.raises(ZeroDivisionError):
        bound(n=17)
    assert not scripted.is_on and not scripted.tunes


def test_the_kernel_is_told_and_kept_in_torchs_file(scripted: ScriptedTunableOp, tmp_path: Path) -> None:
    first, _ = bound(n=16)
    second, _ = bound(n=24)
    assert (first.note, second.note) == ("Gemm_Hipblaslt_0", "Gemm_Hipblaslt_1")
    tunings = read_tunings(tmp_path / "results0.csv")
    assert scripted.filename == str(tmp_path / "results0.csv")
    assert tunings.validators == HERE and not tunings.has_crlf
    key = "GemmTunableOp_BFloat16_TN"
    assert tunings.results == (
        Result(key, "tn_16_1_8_ld_8_8_16", "Gemm_Hipblaslt_0", 2.5e-4),
        Result(key, "tn_24_1_8_ld_8_8_24", "Gemm_Hipblaslt_1", 2.5e-4),
    )


def kept(folder: Path, validators: dict[str, str] = HERE, end: str = "\n") -> Path:
    path = folder / "results0.csv"
    result = Result("GemmTunableOp_BFloat16_TN", "tn_16_1_8_ld_8_8_16", "Gemm_Rocblas_9", 1e-4)
    write_tunings(path, validators, [result])
    path.write_bytes(path.read_bytes().replace(b"\n", end.encode()))
    return path


def test_what_a_file_knows_is_not_tuned_again(scripted: ScriptedTunableOp, tmp_path: Path) -> None:
    kept(tmp_path)
    backend, _ = bound()
    assert "tuning" not in scripted.products and backend.note == "Gemm_Rocblas_9"
    other, _ = bound(n=24)
    assert other.note == "Gemm_Hipblaslt_1"
    assert [one.solution for one in read_tunings(tmp_path / "results0.csv").results] == [
        "Gemm_Rocblas_9", "Gemm_Hipblaslt_1",
    ]  # fmt: skip


def test_crlf_is_mended_and_told_instead_of_being_ignored(scripted: ScriptedTunableOp, tmp_path: Path) -> None:
    path = kept(tmp_path, end="\r\n")
    backend, _ = bound()
    assert backend.note == f"{path} had CRLF line ends, with which torch ignores it: mended; Gemm_Rocblas_9"
    assert b"\r" not in path.read_bytes()


@pytest.mark.parametrize("validators", [HERE | {"PT_VERSION": "2.4.0"}, {}])
def test_a_file_that_torch_would_ignore_is_refused_and_kept(
    scripted: ScriptedTunableOp, tmp_path: Path, validators: dict[str, str]
) -> None:
    path = kept(tmp_path, validators)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"PT_VERSION {validators.get('PT_VERSION', 'none')}, here 2.13.0"):
        bound()
    assert path.read_bytes() == before and not scripted.is_on and "tuning" not in scripted.products


def test_an_empty_file_is_a_new_one(scripted: ScriptedTunableOp, tmp_path: Path) -> None:
    (tmp_path / "results0.csv").touch()
    bound()
    assert read_tunings(tmp_path / "results0.csv").validators == HERE


def test_where_torch_may_not_tune_its_default_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PYTORCH_TUNABLEOP_TUNING=0."""
    install(ScriptedTunableOp(may_tune=False), monkeypatch, tmp_path)
    backend, _ = bound()
    assert backend.note == "nothing tuned: torch's default"
    assert list(tmp_path.iterdir()) == []


def test_of_two_types_each_has_its_own_kernel(scripted: ScriptedTunableOp) -> None:
    bound(dtype=torch.bfloat16)
    assert bound(dtype=torch.float16)[0].note == "Gemm_Hipblaslt_1"


def test_refusals_say_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = LinearProblem(m=1, n=16, k=8, dtype="BF16")
    monkeypatch.delenv("PYTORCH_TUNABLEOP_ENABLED", raising=False)
    assert TorchTuned.supports(problem, CARD).ok
    eight_bits = TorchTuned.supports(problem.model_copy(update={"dtype": "F8_E4M3"}), CARD)
    cpu, cuda = (TorchTuned.supports(problem, DeviceInfo(kind=kind, name="c")) for kind in ("cpu", "cuda"))
    monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", "1")
    everywhere = TorchTuned.supports(problem, CARD)
    reasons = (cpu, "the device is cpu"), (cuda, "the device is cuda"), (eight_bits, "F8_E4M3")
    for support, why in (*reasons, (everywhere, "tunes all of torch")):
        assert not support.ok and why in support.why and support.mend

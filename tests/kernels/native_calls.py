"""Calls C++ kernels with numpy arrays, and knows bf16, which numpy does not."""

import ctypes

import numpy as np


class Kernels:
    """The kernels of one built library, called by name with their arguments and the pool's address last."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(self, name: str, *arguments: "np.ndarray | Guarded | int | float | None") -> int:
        """The kernel's result; one that returns nothing leaves no meaning in it."""
        slots = np.zeros(len(arguments), dtype=np.uint64)
        for i, argument in enumerate(arguments):
            if isinstance(argument, float):
                slots[i : i + 1].view(np.float64)[0] = argument
            elif isinstance(argument, int):
                slots[i] = argument
            elif argument is not None:
                array = argument.values if isinstance(argument, Guarded) else argument
                slots[i] = array.ctypes.data
        return getattr(self._library, name)(slots.ctypes.data_as(ctypes.c_void_p))


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The nearest bf16, ties to even, as the uint16 that holds it."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as a kernel of type bf16, f16 or f32 takes them: aligned nowhere in particular."""
    return (
        to_bf16(values) if dtype == "bf16" else np.asarray(values, dtype={"f16": np.float16, "f32": np.float32}[dtype])
    )


def exact(array: np.ndarray) -> np.ndarray:
    """What `stored` holds, in float64."""
    return (from_bf16(array) if array.dtype == np.uint16 else array).astype(np.float64)


class Guarded:
    """A buffer full of NaN between two guards: what was not written shows, and so does a write beside it."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._guard = 64
        size = int(np.prod(shape))
        nan = {"bf16": np.uint16(0x7FC0), "f16": np.float16(np.nan), "f32": np.float32(np.nan), "i64": np.int64(-1)}[
            dtype
        ]
        self.all = np.full(size + 2 * self._guard, nan)
        self.values = self.all[self._guard : self._guard + size].reshape(shape)
        self._untouched = self.all.copy()

    def result(self) -> np.ndarray:
        """The values in float64, after a look at the guards."""
        for part in (slice(None, self._guard), slice(-self._guard, None)):
            assert self.all[part].tobytes() == self._untouched[part].tobytes(), "written outside the output"
        return exact(self.values)


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: "np.ndarray | float") -> None:
    """Says by how much and where: the worst error over its tolerance, the first coordinate that is wrong."""
    error = np.abs(actual - expected)
    wrong = ~(error <= tolerance)
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        worst = np.nanmax(error / tolerance)
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} values are wrong, the worst by {worst:.3g} times its tolerance;"
            f" first at {first}: {actual[first]} instead of {expected[first]}"
        )

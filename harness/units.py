"""Text for quantities. Stored figures are SI (s, bytes, bytes/s); only rendered text says ms, GB/s or GiB."""

MISSING = "-"


def ms(seconds: float | None) -> str:
    """Seconds as milliseconds: three significant decimals under a second's worth of digits."""
    return MISSING if seconds is None else f"{seconds * 1e3:,.3f} ms"


def gb_per_s(bytes_per_s: float | None) -> str:
    """Bandwidth in GB/s, 10^9 bytes, as data sheets give it."""
    return MISSING if bytes_per_s is None else f"{bytes_per_s / 1e9:,.2f} GB/s"


def num_bytes(count: float | None) -> str:
    """A byte count in the binary unit that fits, the exact figure staying in the record."""
    if count is None:
        return MISSING
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count:,.0f} B"


def flop_per_s(rate: float | None) -> str:
    """Compute rate in TFLOP/s (10^12), or GFLOP/s where that would read 0.0."""
    if rate is None:
        return MISSING
    return f"{rate / 1e12:,.2f} TFLOP/s" if rate >= 1e11 else f"{rate / 1e9:,.2f} GFLOP/s"


def percent(fraction: float | None) -> str:
    """A fraction as per cent with one decimal."""
    return MISSING if fraction is None else f"{fraction * 100:.1f} %"

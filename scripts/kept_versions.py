"""What an installation changed of what was there before it, from `pip list --format=freeze` before and after.

    python3 kept_versions.py BEFORE AFTER

Names each package that has another version, or is gone; new ones are welcome. Exit code 0: all kept; 1: not all; 2:
BEFORE is empty, so that nothing could be compared. Standard library only: it runs in a base image.
"""

import sys
from pathlib import Path


def read_versions(text: str) -> dict[str, str]:
    """Version by package; the `===` of a version that follows no standard is kept as its first character."""
    pairs = (line.strip().partition("==") for line in text.splitlines() if line.strip())
    return {name: version for name, _, version in pairs}


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """One line a package of `before` whose version is another in `after`, in the order of names."""
    return [
        f"{name} {version} -> {after.get(name, 'gone')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]


def main(before_path: str, after_path: str) -> int:
    """Compare two lists and say what changed; the exit code."""
    before = read_versions(Path(before_path).read_text())
    if not before:
        print(f"error: {before_path} lists no package\nmend:  make it before installing", file=sys.stderr)
        return 2
    changed = changes(before, read_versions(Path(after_path).read_text()))
    if changed:
        print(f"error: the base's packages changed: {', '.join(changed)}", file=sys.stderr)
        print("mend:  give a base that has what the harness requires: --build-arg BASE=...", file=sys.stderr)
        return 1
    print(f"all {len(before)} packages of the base have kept their versions")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

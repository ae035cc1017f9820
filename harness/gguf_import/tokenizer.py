"""tokenizer.json and tokenizer_config.json from a GGUF's vocabulary.

A GGUF only names the pre-tokenizer that tokenizer.json describes: each name needs its rules, here SmolLM's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.gguf_import.gguf_file import GgufFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_KINDS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
_ADDITIONS = ("add_bos_token", "add_eos_token", "add_space_prefix")
_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def build_tokenizer(gguf: GgufFile, vocab_size: int) -> Tokenizer:
    """SmolLM's byte-level BPE: digits one by one, GPT-2's pattern for the rest, merges over bytes.

    Raises CheckpointError for other kinds, and for a vocabulary that is not whole.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    for key, known in _KINDS.items():
        if gguf.field(key, str) != known:
            raise gguf.fault(f"{key} is {gguf.fields[key]!r}", f"only {known} is converted")
    for name in _ADDITIONS:
        if gguf.fields.get(f"tokenizer.ggml.{name}"):
            raise gguf.fault(f"tokenizer.ggml.{name} is true", "only tokenizers that add nothing are converted")
    vocab = _vocabulary(gguf, vocab_size)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=_merges(gguf, vocab)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(text, special=True, normalized=False) for text in _control_tokens(gguf)]
    tokenizer.add_special_tokens(control)
    return tokenizer


def tokenizer_config(gguf: GgufFile, max_context: int) -> dict[str, Any]:
    """What transformers' AutoTokenizer needs to take tokenizer.json as it is."""
    tokens = gguf.texts("tokenizer.ggml.tokens")
    special: dict[str, str] = {}
    for name, key in _SPECIAL_TOKENS.items():
        if key in gguf.fields:
            number = gguf.field(key, int)
            if not 0 <= number < len(tokens):
                raise gguf.fault(f"{key} is {number}, of {len(tokens)} tokens", "fetch the file again")
            special[name] = tokens[number]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": max_context,
        "clean_up_tokenization_spaces": False,
        "chat_template": gguf.fields.get("tokenizer.chat_template"),
    }


def _vocabulary(gguf: GgufFile, vocab_size: int) -> dict[str, int]:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    vocab = {token: number for number, token in enumerate(tokens)}
    if not len(vocab) == len(tokens) == vocab_size:
        found = f"{len(tokens)} tokens, {len(vocab)} of them distinct"
        raise gguf.fault(f"holds {found}, and a vocab_size of {vocab_size}", "fetch the file again")
    return vocab


def _merges(gguf: GgufFile, vocab: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in gguf.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocab.keys():
            raise gguf.fault(f"merge {merge!r} is not of two tokens that make a third", "fetch the file again")
        merges.append((left, right))
    return merges


def _control_tokens(gguf: GgufFile) -> list[str]:
    """Tokens that text never makes: taken whole, and left out when decoding for a reader."""
    from gguf import TokenType

    tokens = gguf.texts("tokenizer.ggml.tokens")
    types = gguf.field("tokenizer.ggml.token_type", list)
    strange = set(types) - {TokenType.NORMAL, TokenType.CONTROL}
    if strange or len(types) != len(tokens):
        raise gguf.fault(
            f"tokenizer.ggml.token_type: {len(types)} for {len(tokens)} tokens, of kinds {set(types)}",
            "only normal (1) and control (3) tokens are converted, each with its type",
        )
    return [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]

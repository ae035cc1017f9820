"""What one device of several has of a model that they share by tensor parallelism (Shoeybi et al., 2019: Megatron-LM).

Each rank has its share of the heads of every mixer, of the width of every MLP and expert, and of the vocabulary: it is
a smaller model of the same depth. What does not shrink with those is on every rank: norms, routers, a latent cache and
the projections to it. Key heads that are fewer than ranks are kept several times.
"""

from collections.abc import Sequence
from math import ceil, prod

from harness.errors import ConfigError
from harness.specs.layer import LayerKind, Mixer, Mlp
from harness.specs.layout import embedding_name, head_name
from harness.specs.model import ModelSpec
from harness.specs.parts.absent import NoMixer, NoMlp
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.mamba1 import Mamba1
from harness.specs.parts.mamba2 import Mamba2
from harness.specs.parts.mlp import Moe
from harness.specs.tensor import TensorMeta, dtype_bytes
from harness.traffic import packed_weight

ALL_REDUCES_A_LAYER = 2
"""Behind the mixer and behind the MLP."""
VOCAB_MULTIPLE = 64
"""vLLM fills a vocabulary up to a multiple of this before it shares it out."""


def rank_spec(spec: ModelSpec, num_ranks: int) -> ModelSpec:
    """The model that the fullest rank has. Raises ConfigError where heads can't be shared out evenly."""
    if num_ranks == 1:
        return spec
    kinds = tuple(
        LayerKind(mixer=_rank_mixer(kind.mixer, num_ranks), mlp=_rank_mlp(kind.mlp, num_ranks), norms=kind.norms)
        for kind in spec.kinds
    )
    return spec.model_copy(update={"kinds": kinds, "vocab_size": vocab_shares(spec.vocab_size, num_ranks)[0]})


def vocab_shares(vocab_size: int, num_ranks: int) -> tuple[int, ...]:
    """Each rank's rows of the embedding and of the head, as vLLM cuts them: equal parts of the filled-up vocabulary,
    the last ones without what fills it up."""
    part = ceil(_filled_up(vocab_size) / num_ranks)
    return tuple(min(part, max(0, vocab_size - rank * part)) for rank in range(num_ranks))


def check_divides(spec: ModelSpec, num_ranks: int) -> None:
    """ConfigError for a width that vLLM would not start with: it shares out evenly or not at all."""
    widths = [width for kind in spec.kinds for width in _mlp_widths(kind.mlp)]
    for width in (*widths, _filled_up(spec.vocab_size)):
        if width % num_ranks:
            raise ConfigError(
                f"a width of {width} can't be shared out to {num_ranks} ranks", "give a number of ranks that divides it"
            )


def can_share(spec: ModelSpec, num_ranks: int) -> bool:
    """Whether the model can be shared out to so many."""
    try:
        rank_spec(spec, num_ranks)
    except ConfigError:
        return False
    return True


def rank_tensors(spec: ModelSpec, num_ranks: int, tensors: Sequence[TensorMeta]) -> tuple[TensorMeta, ...]:
    """Each tensor with as many values as that rank has of it. Their shapes do not matter any more: they are flat."""
    whole, of_rank = _num_values(spec), _num_values(rank_spec(spec, num_ranks))

    def cut(tensor: TensorMeta) -> TensorMeta:
        name = tensor.name if tensor.name in whole else packed_weight(tensor.name)
        if name not in whole or whole[name] == of_rank[name]:
            return tensor
        num_values = -(-tensor.num_elements * of_rank[name] // whole[name])
        return TensorMeta(name=tensor.name, dtype=tensor.dtype, shape=(num_values,))

    return tuple(map(cut, tensors))


def _num_values(spec: ModelSpec) -> dict[str, int]:
    """Of every tensor by its name."""
    by_kind = [{name: prod(shape) for name, shape in kind.tensors(spec.hidden_size)} for kind in spec.kinds]
    at_layer = [(f"{spec.tensor_prefix}layers.{index}.", by_kind[kind]) for index, kind in enumerate(spec.pattern)]
    values = {at + name: count for at, kind in at_layer for name, count in kind.items()}
    outside = dict.fromkeys((embedding_name(spec), head_name(spec)), spec.vocab_size * spec.hidden_size)
    return values | outside


def collectives_floor_s(spec: ModelSpec, batch: int, num_ranks: int, link_bytes_per_s: float | None) -> float | None:
    """Least time of a step's all-reduces over rings, where each rank sends 2 (R - 1) / R of the values (Patarasuk and
    Yuan, 2009). Null for one rank, and where the link is not known."""
    if num_ranks == 1 or link_bytes_per_s is None:
        return None
    num_bytes = batch * spec.hidden_size * dtype_bytes(spec.dtype)
    sent = 2 * (num_ranks - 1) / num_ranks * num_bytes
    return ALL_REDUCES_A_LAYER * spec.num_layers * sent / link_bytes_per_s


def _rank_mixer(mixer: Mixer, num_ranks: int) -> Mixer:
    if isinstance(mixer, NoMixer):
        return mixer
    if isinstance(mixer, Mamba1 | Mamba2):
        raise ConfigError(f"how {mixer.kind} layers are shared out is not modelled", "plan one device")
    if isinstance(mixer, GatedDelta):
        heads = {"num_key_heads": mixer.num_key_heads, "num_value_heads": mixer.num_value_heads}
        return mixer.model_copy(update={name: _share(count, num_ranks) for name, count in heads.items()})
    update = {"num_heads": _share(mixer.num_heads, num_ranks)}
    if isinstance(mixer, Attention):
        kept_several_times = num_ranks % mixer.num_kv_heads == 0
        update["num_kv_heads"] = 1 if kept_several_times else _share(mixer.num_kv_heads, num_ranks)
    return mixer.model_copy(update=update)


def _rank_mlp(mlp: Mlp, num_ranks: int) -> Mlp:
    if isinstance(mlp, NoMlp):
        return mlp
    if not isinstance(mlp, Moe):
        return mlp.model_copy(update={"intermediate_size": ceil(mlp.intermediate_size / num_ranks)})
    shared = None if mlp.shared is None else _rank_mlp(mlp.shared, num_ranks)
    return mlp.model_copy(update={"expert": _rank_mlp(mlp.expert, num_ranks), "shared": shared})


def _mlp_widths(mlp: Mlp) -> list[int]:
    if isinstance(mlp, NoMlp):
        return []
    if not isinstance(mlp, Moe):
        return [mlp.intermediate_size]
    return [part.intermediate_size for part in (mlp.expert, mlp.shared) if part is not None]


def _filled_up(vocab_size: int) -> int:
    return ceil(vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _share(num_heads: int, num_ranks: int) -> int:
    if num_heads % num_ranks:
        raise ConfigError(
            f"{num_heads} heads can't be shared out to {num_ranks} ranks", "give a number of ranks that divides them"
        )
    return num_heads // num_ranks

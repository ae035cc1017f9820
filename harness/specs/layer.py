"""A layer: a mixer, which lets positions look at each other, and an MLP, which does not, with norms around them.

A model is a few kinds of layers in a pattern (`specs.model`), so that a hybrid is not a special case. Nor is a layer
that lacks one of the two: it has a part that does nothing (`parts.absent`).
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from harness.specs.base import Frozen
from harness.specs.parts.absent import NoMixer, NoMlp
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.latent_attention import LatentAttention
from harness.specs.parts.mamba1 import Mamba1
from harness.specs.parts.mamba2 import Mamba2
from harness.specs.parts.mlp import GatedMlp, Moe, PlainMlp
from harness.specs.parts.product import Product, Shape
from harness.specs.parts.stacked_moe import StackedMoe

Mixer = Annotated[Attention | LatentAttention | GatedDelta | Mamba1 | Mamba2 | NoMixer, Field(discriminator="kind")]
Mlp = Annotated[GatedMlp | PlainMlp | Moe | StackedMoe | NoMlp, Field(discriminator="kind")]


class LayerKind(Frozen):
    """One kind of layer."""

    mixer: Mixer
    mlp: Mlp

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Gemma norms what comes out of a part as well as what goes in; Nemotron-H's layers have one part and one norm."""

    def products(self, hidden: int) -> list[Product]:
        """Matrix products with weights that one token goes through."""
        return [*self.mixer.products(hidden), *self.mlp.products(hidden)]

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """Names and shapes within the layer."""
        yield from self.mixer.tensors(hidden)
        yield from self.mlp.tensors(hidden)
        yield from ((f"{norm}.weight", (hidden,)) for norm in self.norms)

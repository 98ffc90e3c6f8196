"""Layout of our own names, for any model whose keys `rename` maps to them."""

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..rules import Layout, our_keys, special_ids

PLAIN = Layout(
    name="plain",
    description="our own names, stored or after --rename: any model that our configuration can express",
    keys=(our_keys()._replace(output="lm_head", optional=(".bias",)),),
    own_signature=("model.encoder.embed_tokens.weight", "model.decoder.layers.{i}.encoder_attn.q_proj.weight"),
    # All are required; the message offers these values.
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5, **special_ids(pad=1, bos=2, eos=3)},
    example="mine.pt --layout plain --rename names.txt --config encoder_attention_heads=8",
    setting_fields={name: (name,) for name in VanillaTransformerConfig.__annotations__},
    needs_name=True,
)

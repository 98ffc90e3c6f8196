"""Layouts of source checkpoints, one module per family."""

from .attention_is_all_you_need import ATTENTION_IS_ALL_YOU_NEED
from .fairseq import FAIRSEQ
from .joeynmt import JOEY_NMT
from .opennmt import EOLE, OPEN_NMT
from .plain import PLAIN
from .sockeye import SOCKEYE
from .transformers_models import TRANSFORMERS_MODELS
from .tutorials import TUTORIALS
from .xtransformers import X_TRANSFORMERS

LAYOUTS = {
    layout.name: layout
    for layout in (
        *TUTORIALS,
        ATTENTION_IS_ALL_YOU_NEED,
        *TRANSFORMERS_MODELS,
        FAIRSEQ,
        OPEN_NMT,
        EOLE,
        JOEY_NMT,
        X_TRANSFORMERS,
        SOCKEYE,
        PLAIN,
    )
}

__all__ = ["LAYOUTS"]

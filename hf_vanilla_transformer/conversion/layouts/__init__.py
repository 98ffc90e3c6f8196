"""The layouts of source checkpoints, one module a family."""

from .attention_is_all_you_need import ATTENTION_IS_ALL_YOU_NEED
from .bart import BART, M2M100, MBART
from .fairseq import FAIRSEQ
from .fsmt import FSMT
from .joeynmt import JOEY_NMT
from .marian import MARIAN
from .opennmt import EOLE, OPEN_NMT
from .plain import PLAIN
from .sockeye import SOCKEYE
from .tutorials import TUTORIALS
from .xtransformers import X_TRANSFORMERS

LAYOUTS = {
    layout.name: layout
    for layout in (
        *TUTORIALS,
        ATTENTION_IS_ALL_YOU_NEED,
        # Before those whose keys are among theirs.
        MBART,
        BART,
        M2M100,
        MARIAN,
        FSMT,
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

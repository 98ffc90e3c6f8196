"""The layouts of source checkpoints, one module a family."""

from .annotated_transformer import ANNOTATED_TRANSFORMER, SCALAR_NORM, SIMPLE_TRANSFORMERS
from .attention_is_all_you_need import ATTENTION_IS_ALL_YOU_NEED
from .bart import BART, M2M100, MBART
from .eole import EOLE
from .fairseq import FAIRSEQ
from .fsmt import FSMT
from .joeynmt import JOEY_NMT
from .marian import MARIAN
from .nn_transformer import ALADDINPERSSON, NN_TRANSFORMER
from .notebooks import LIGHTNING_PHRASES, STATQUEST
from .opennmt import OPEN_NMT
from .plain import PLAIN
from .shared_heads import ALADDINPERSSON_FROM_SCRATCH, SHARED_HEADS
from .sockeye import SOCKEYE
from .tutorials import BENTREVETT, GORDICALEKSA, HKPROJ, HYUNWOONGKO, SAMLYNNEVANS
from .xtransformers import X_TRANSFORMERS

LAYOUTS = {
    layout.name: layout
    for layout in (
        ANNOTATED_TRANSFORMER,
        SIMPLE_TRANSFORMERS,
        NN_TRANSFORMER,
        ALADDINPERSSON,
        HKPROJ,
        HYUNWOONGKO,
        BENTREVETT,
        SAMLYNNEVANS,
        GORDICALEKSA,
        SCALAR_NORM,
        STATQUEST,
        LIGHTNING_PHRASES,
        SHARED_HEADS,
        ATTENTION_IS_ALL_YOU_NEED,
        # Before those whose keys are among theirs.
        MBART,
        BART,
        M2M100,
        ALADDINPERSSON_FROM_SCRATCH,
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

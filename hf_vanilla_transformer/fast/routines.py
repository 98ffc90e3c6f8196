"""The fastest CPU routine for each product and attention, measured once per processor instead of at run time.

An unlisted processor uses PyTorch's defaults.
"""

from enum import Enum
from typing import NamedTuple

import torch

from ..processor import processor


class Routine(Enum):
    """A way to multiply by a weight matrix."""

    DEFAULT = "the one that `torch.nn.functional.linear` uses: MKL in float32"
    ONEDNN = "oneDNN"
    PACKED = "oneDNN with a copy of the weight in its fastest layout, for weights that do not change"


class Product(NamedTuple):
    """The routine for products of at most `rows` rows with a weight of at least `numbers` elements.

    Rules with `PACKED` are skipped if weights may change.
    """

    rows: float
    numbers: int
    routine: Routine


class Batched(NamedTuple):
    """The fewest heads in a batch and the most keys for which two products and a softmax beat flash attention.

    With fewer heads, the calls alone cost more than flash attention.
    """

    heads: float
    keys: float


class Attention(NamedTuple):
    """Where batched products beat flash attention: in a decoding step, for several queries, and in training."""

    step: Batched
    queries: Batched
    training: Batched


class Routines(NamedTuple):
    """The rules of a processor by dtype; the first `Product` that matches applies."""

    products: dict[torch.dtype, tuple[Product, ...]]
    attention: dict[torch.dtype, Attention]


ANY, NEVER = float("inf"), Batched(float("inf"), 0)

# By `processor()`, each measured by `python scripts/benchmark.py products`.
ROUTINES = {
    # Two virtual cores of an EPYC; `--preset tiny small base --dtype float32 bfloat16`.
    "AMD AVX-512 BF16": Routines(
        products={
            # Not MKL for small products, though it is faster: its bits depend on a weight's memory address.
            torch.float32: (
                Product(1, 0, Routine.ONEDNN),
                Product(128, 2**18, Routine.PACKED),
                Product(ANY, 0, Routine.ONEDNN),
            ),
            torch.bfloat16: (Product(512, 0, Routine.PACKED),),
        },
        attention={
            # Not for several queries: 5 to 10 % faster up to 64 keys, but rounding then depends on the batch size.
            torch.float32: Attention(Batched(128, ANY), NEVER, NEVER),
            torch.bfloat16: Attention(Batched(128, ANY), Batched(32, 512), Batched(8, 512)),
        },
    ),
    # Two cores of a Xeon: products of 1, 32, 128 and 2048 rows were measured, attention was not.
    "Intel AMX": Routines(
        products={
            torch.float32: (Product(16, 0, Routine.DEFAULT), Product(128, 0, Routine.PACKED)),
            torch.bfloat16: (Product(128, 0, Routine.PACKED),),
        },
        attention={
            torch.float32: Attention(Batched(128, ANY), NEVER, NEVER),
            torch.bfloat16: Attention(Batched(128, ANY), Batched(128, 512), Batched(128, 512)),
        },
    ),
}


def this_processor() -> Routines:
    """Return the rules of this processor; none if it is not listed or this PyTorch has no oneDNN.

    bfloat16 products are left out if oneDNN does not support them, for example because of ONEDNN_MAX_CPU_ISA.
    """
    if processor() not in ROUTINES or not torch.backends.mkldnn.is_available():
        return Routines({}, {})
    products, attention = ROUTINES[processor()]
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        products = {dtype: rules for dtype, rules in products.items() if dtype != torch.bfloat16}
    return Routines(products, attention)

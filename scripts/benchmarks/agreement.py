"""Checks that implementations compute the same results before they are timed."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .measure import Disagreement

# Largest difference of loss and gradients for equal weights, relative to the gradient's norm. Implementations sum in
# different orders, which a deep post-norm model magnifies at initialization: in float32, some gradients of the base
# model, ours and Marian's alike, are 9e-4 off float64 and 2e-3 off each other. bfloat16 has 8 bits of precision.
TOLERANCE = {"float32": 5e-3, "bfloat16": 1e-1}
# Smallest fraction of equal tokens in float32; not 1, since summation order can break ties.
MIN_TOKEN_AGREEMENT = 0.99


def loss_and_gradients(model: nn.Module, batch: Mapping[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """Compute the loss, as "loss", and the gradients by parameter name, tied ones under every name.

    The model returns the loss, or an output with it. Dropout is off, and no gradients stay in the model.
    """
    training = model.training
    model.eval()
    output = model(**batch, **options)
    loss = getattr(output, "loss", output)
    loss.backward()
    gradients = {
        name: parameter.grad.detach()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.grad is not None
    }
    model.zero_grad()
    model.train(training)
    return {"loss": loss.detach(), **gradients}


def check_agreement(ours: Mapping[str, Tensor], baseline: Mapping[str, Tensor], name: str, dtype: str) -> None:
    """Check that a baseline has our loss and our gradient of every parameter, as `loss_and_gradients` returns them.

    Gradients that only the baseline has are ignored.
    """
    missing = [parameter for parameter in ours if parameter not in baseline]
    if missing:
        raise Disagreement(f"{name} has no gradient of {missing[0]}, so it is not the same model as ours")
    gradients = [gradient for parameter, gradient in ours.items() if parameter != "loss"]
    # Rounding errors have the scale of typical gradients, also in a gradient close to zero.
    typical = float(torch.stack([gradient.float().norm() for gradient in gradients]).square().mean().sqrt())
    differences = {}
    for parameter, own in ours.items():
        size = abs(float(own)) if parameter == "loss" else max(float(own.float().norm()), 0.1 * typical)
        differences[parameter] = float((baseline[parameter].float() - own.float()).norm()) / size
    worst = max(differences, key=lambda part: math.inf if math.isnan(differences[part]) else differences[part])
    if not differences[worst] <= TOLERANCE[dtype]:
        what = "loss" if worst == "loss" else f"gradient of {worst}"
        raise Disagreement(
            f"{name} and ours do not agree in {dtype}: the {what} differs by {differences[worst]:.1e} (tolerance "
            f"{TOLERANCE[dtype]:.0e}), so their timings are not comparable"
        )


def token_agreement(ours: Tensor, baseline: Tensor) -> float:
    """Fraction 0..1 of equal tokens in two tensors (B, T); positions present in only one count as different."""
    width = max(ours.shape[1], baseline.shape[1])
    padded = (nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=-1) for tokens in (ours, baseline))
    return float(torch.eq(*padded).float().mean())


def check_tokens(ours: Tensor, baseline: Tensor, name: str, dtype: str) -> float:
    """Return the fraction of equal tokens (B, T); below `MIN_TOKEN_AGREEMENT` in float32 raises `Disagreement`."""
    fraction = token_agreement(ours, baseline)
    if dtype == "float32" and fraction < MIN_TOKEN_AGREEMENT:
        raise Disagreement(
            f"{name} and ours decode different tokens in float32: {fraction:.1%} are equal, less than "
            f"{MIN_TOKEN_AGREEMENT:.0%}, so their timings are not comparable"
        )
    return fraction

"""Checks that implementations compute the same before they are timed."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .measure import Disagreement

# Largest difference of loss and gradients for equal weights, relative to the norm of the gradient. Implementations sum
# in different orders, which a deep post-norm model magnifies at initialization: in float32, some gradients of the base
# model, ours and Marian's alike, are 9e-4 away from float64 and 2e-3 from each other. bfloat16 keeps 8 bits.
TOLERANCE = {"float32": 5e-3, "bfloat16": 1e-1}
# Smallest fraction of equal tokens in float32, since another order of summation can break a tie.
MIN_TOKEN_AGREEMENT = 0.99


def loss_and_gradients(model: nn.Module, batch: Mapping[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """Compute the loss, as "loss", and the gradients by parameter name, tied ones under every name.

    Dropout is off, and the model, whose output is the loss or has it, keeps no gradients.
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
    # A gradient close to zero is only as precise as the rounding errors of the others.
    typical = float(torch.stack([gradient.float().norm() for gradient in gradients]).square().mean().sqrt())
    differences = {}
    for parameter, own in ours.items():
        size = abs(float(own)) if parameter == "loss" else max(float(own.float().norm()), 0.1 * typical)
        differences[parameter] = float((baseline[parameter].float() - own.float()).norm()) / size
    worst = max(differences, key=lambda each: math.inf if math.isnan(differences[each]) else differences[each])
    if not differences[worst] <= TOLERANCE[dtype]:
        what = "loss" if worst == "loss" else f"gradient of {worst}"
        raise Disagreement(
            f"{name} and ours do not agree in {dtype}: the {what} differs by {differences[worst]:.1e} (tolerance "
            f"{TOLERANCE[dtype]:.0e}), so their times cannot be compared"
        )


def token_agreement(ours: Tensor, baseline: Tensor) -> float:
    """Fraction 0..1 of equal tokens of two tensors (B, T); positions that only one of them has differ."""
    width = max(ours.shape[1], baseline.shape[1])
    padded = (nn.functional.pad(each, (0, width - each.shape[1]), value=-1) for each in (ours, baseline))
    return float(torch.eq(*padded).float().mean())


def check_tokens(ours: Tensor, baseline: Tensor, name: str, dtype: str) -> float:
    """Return the fraction of equal tokens (B, T), in float32 at least `MIN_TOKEN_AGREEMENT`."""
    fraction = token_agreement(ours, baseline)
    if dtype == "float32" and fraction < MIN_TOKEN_AGREEMENT:
        raise Disagreement(
            f"{name} and ours decode different tokens in float32: {fraction:.1%} are equal, at least "
            f"{MIN_TOKEN_AGREEMENT:.0%} must be, so their times cannot be compared"
        )
    return fraction

"""Muon for the matrices of the layers, and Adam for everything else (Jordan et al. 2024)."""

from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import nn

from .arguments import VanillaTransformerTrainingArguments, bf16_is_fast


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` that multiplies in float32 where that is faster than bfloat16, its only precision.

    Always with Nesterov momentum and updates of the size of Adam's. Its state is that of `torch.optim.Muon`.

    Args:
        params: Matrices, or groups of them.
        lr: Learning rate.
        **options: Other arguments of `torch.optim.Muon`.
    """

    def __init__(self, params: Any, lr: float, **options: Any) -> None:
        super().__init__(params, lr=lr, adjust_lr_fn="match_rms_adamw", **options)
        self.precision = torch.bfloat16 if bf16_is_fast() else torch.float32

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # `MuonWithAdam` calls the closure
        """Update the matrices that have gradients."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, matrix.grad, group)

    def _update(self, matrix: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[matrix], group["momentum"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = orthogonalized(
            gradient.lerp(mean, momentum).to(self.precision),
            group["ns_coefficients"],
            group["ns_steps"],
            group["eps"],
        )
        # A matrix with orthonormal rows has root mean square entries of max(shape) ** -0.5; Adam's are about 0.2.
        size = 0.2 * max(matrix.shape) ** 0.5
        matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * size)


def orthogonalized(
    matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Bring the singular values near 1, by Newton-Schulz iterations.

    Args:
        matrix: (M, N), in the precision to compute in.
        coefficients: Of x, x^3 and x^5 in the polynomial that maps the singular values.
        steps: Iterations.
        eps: Least Frobenius norm to divide by.

    Returns:
        (M, N).
    """
    a, b, c = coefficients
    wide = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        wide = torch.addmm(wide, polynomial, wide, beta=a)
    return wide.T if matrix.size(0) > matrix.size(1) else wide


class MuonWithAdam(torch.optim.Optimizer):
    """Two optimizers as one: `Muon` for matrices, `torch.optim.AdamW` for other parameters.

    Muon's updates are scaled to the size of Adam's, so that one learning rate suits both.

    Args:
        matrices: Groups of parameters with two dimensions.
        others: Groups of other parameters.
        lr: Learning rate.
        **adam: Other arguments of `AdamW`.
    """

    def __init__(self, matrices: list[dict[str, Any]], others: list[dict[str, Any]], lr: float, **adam: Any) -> None:
        self.muon = Muon(matrices, lr=lr)
        self.adam = torch.optim.AdamW(others, lr=lr, **adam)
        super().__init__([*self.muon.param_groups, *self.adam.param_groups], {"lr": lr})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # as theirs
        """Step with both; `closure` computes the loss anew."""
        loss = self.adam.step(closure)
        self.muon.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.muon.load_state_dict(state_dict["muon"])
        self.adam.load_state_dict(state_dict["adam"])
        # The same objects: a scheduler sets learning rates here.
        self.param_groups = [*self.muon.param_groups, *self.adam.param_groups]


def muon_with_adam(
    model: nn.Module, decaying: Collection[str], args: VanillaTransformerTrainingArguments
) -> MuonWithAdam:
    """Return the optimizer of a model, with weight decay for the parameters of these names."""
    matrices = layer_matrices(model)
    others = {name for name, each in model.named_parameters() if each.requires_grad} - matrices
    decay = args.weight_decay
    return MuonWithAdam(
        [_group(model, matrices, decay)],
        [_group(model, others & {*decaying}, decay), _group(model, others - {*decaying}, 0.0)],
        lr=cast(float, args.learning_rate),
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
    )


def _group(model: nn.Module, names: Collection[str], weight_decay: float) -> dict[str, Any]:
    # In the order of the model, which is the same in every run.
    parameters = [each for name, each in model.named_parameters() if name in names]
    return {"params": parameters, "weight_decay": weight_decay}


def layer_matrices(model: nn.Module) -> set[str]:
    """Names of the trained matrices in the layers: all but those of embeddings and of the output."""
    head = cast(Any, model).get_output_embeddings()
    tables = [each for each in (*model.modules(),) if isinstance(each, nn.Embedding)] + ([head] if head else [])
    excluded = {id(parameter) for table in tables for parameter in table.parameters()}
    named = model.named_parameters()
    return {name for name, each in named if each.dim() == 2 and each.requires_grad and id(each) not in excluded}


__all__ = ["Muon", "MuonWithAdam", "layer_matrices", "muon_with_adam"]

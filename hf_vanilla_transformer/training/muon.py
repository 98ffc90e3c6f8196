"""Muon for the matrices of the layers, and Adam for everything else (Jordan et al. 2024)."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from .arguments import VanillaTransformerTrainingArguments, bf16_is_fast


class Muon(torch.optim.Muon):
    """`torch.optim.Muon`, but multiplying in float32 where that is faster than bfloat16, its only precision.

    Always uses Nesterov momentum and scales updates to the size of Adam's. State and arguments are those of
    `torch.optim.Muon`.
    """

    def __init__(self, params: Any, lr: float, **options: Any) -> None:
        super().__init__(params, lr=lr, adjust_lr_fn="match_rms_adamw", **options)
        self.precision = torch.bfloat16 if bf16_is_fast() else torch.float32

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # `MuonWithAdam` calls the closure
        """Update the matrices that have gradients."""
        for group in self.param_groups:
            for matrices in stackable(matrix for matrix in group["params"] if matrix.grad is not None):
                gradients = [cast(Tensor, matrix.grad) for matrix in matrices]
                states = [self.state[matrix] for matrix in matrices]
                for state, gradient in zip(states, gradients, strict=True):
                    if not state:
                        state["momentum_buffer"] = torch.zeros_like(gradient)
                means = [state["momentum_buffer"] for state in states]
                if len(matrices) == 1:
                    self._update(matrices[0], gradients[0], means[0], group)
                    continue
                matrix, gradient, mean = map(stacked, (matrices, gradients, means))
                self._update(matrix, gradient, mean, group)
                torch._foreach_copy_([*matrices, *means], [*unstacked(matrix, matrices), *unstacked(mean, means)])

    def _update(self, matrix: Tensor, gradient: Tensor, mean: Tensor, group: dict[str, Any]) -> None:
        """Update a matrix (M, N), or a stack (K, M, N), and the running mean of its gradients in place."""
        momentum = group["momentum"]
        mean.lerp_(gradient, 1 - momentum)
        update = gradient.lerp(mean, momentum).to(self.precision)
        update = orthogonalized(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        # A matrix with orthonormal rows has root mean square entries of max(shape) ** -0.5; Adam's are about 0.2.
        size = 0.2 * max(matrix.shape[-2:]) ** 0.5
        matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * size)


def orthogonalized(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Bring the singular values of a matrix (M, N), or a stack (K, M, N), near 1 with Newton-Schulz iterations.

    The coefficients are those of x, x^3 and x^5 in the polynomial that maps the values; `eps` is the minimum Frobenius
    norm to divide by.
    """
    a, b, c = coefficients
    addmm = torch.addmm if matrix.dim() == 2 else torch.baddbmm
    wide = matrix.mT if is_tall(matrix) else matrix
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.mT
        polynomial = addmm(gram, gram, gram, beta=b, alpha=c)
        wide = addmm(wide, polynomial, wide, beta=a)
    return wide.mT if is_tall(matrix) else wide


def stackable(matrices: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Group matrices to update together: those of the same shape or its transpose; on a CPU, each alone.

    A step thus takes a few dozen launches for any number of layers. Stacks need no limit: they are smaller than the
    activations, which are freed by then.
    """
    groups: dict[Any, list[Tensor]] = {}
    for matrix in matrices:
        # Sharded matrices are of another class.
        is_stacked = launches_cost(matrix.device) and type(matrix) in (Tensor, nn.Parameter)
        key = (matrix.device, matrix.dtype, *sorted(matrix.shape)) if is_stacked else id(matrix)
        groups.setdefault(key, []).append(matrix)
    return groups.values()


def launches_cost(device: torch.device) -> bool:
    """Whether one op on a stack takes less time than one op per matrix."""
    return device.type != "cpu"


def is_tall(matrix: Tensor) -> bool:
    return matrix.size(-2) > matrix.size(-1)


def stacked(matrices: list[Tensor]) -> Tensor:
    """Stack K matrices (M, N) or (N, M), M <= N, as (K, M, N)."""
    return torch.stack([matrix.T if is_tall(matrix) else matrix for matrix in matrices])


def unstacked(stack: Tensor, matrices: list[Tensor]) -> list[Tensor]:
    """Undo `stacked`, with the strides of `matrices`, so that `_foreach_copy_` copies all in one launch."""
    wide, tall = stack.unbind(), stack.mT.contiguous().unbind()
    return [tall[k] if is_tall(matrix) else wide[k] for k, matrix in enumerate(matrices)]


class MuonWithAdam(torch.optim.Optimizer):
    """Two optimizers as one: `Muon` for groups of matrices, `torch.optim.AdamW` for groups of other parameters.

    Muon's updates are scaled to the size of Adam's, so that one learning rate suits both.
    """

    def __init__(self, matrices: list[dict[str, Any]], others: list[dict[str, Any]], lr: float, **adam: Any) -> None:
        self.muon = Muon(matrices, lr=lr)
        self.adam = torch.optim.AdamW(others, lr=lr, **adam)
        super().__init__([*self.muon.param_groups, *self.adam.param_groups], {"lr": lr})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # as theirs
        """Step both optimizers; `closure` recomputes the loss."""
        loss = self.adam.step(closure)
        self.muon.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.muon.load_state_dict(state_dict["muon"])
        self.adam.load_state_dict(state_dict["adam"])
        # Share the groups with both optimizers, because a scheduler sets learning rates here.
        self.param_groups = [*self.muon.param_groups, *self.adam.param_groups]


def muon_with_adam(
    model: nn.Module, decaying: Collection[str], args: VanillaTransformerTrainingArguments
) -> MuonWithAdam:
    """Return the optimizer of a model, with weight decay for the parameters of these names."""
    # In the order of the model, which is the same in every run.
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    matrices, decay = layer_matrices(model), args.weight_decay
    others = trained.keys() - matrices

    def group(names: Collection[str], weight_decay: float) -> dict[str, Any]:
        return {"params": [weight for name, weight in trained.items() if name in names], "weight_decay": weight_decay}

    return MuonWithAdam(
        [group(matrices, decay)],
        [group(others & {*decaying}, decay), group(others - {*decaying}, 0.0)],
        lr=cast(float, args.learning_rate),
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
    )


def layer_matrices(model: nn.Module) -> set[str]:
    """Names of the trained matrices in the layers: all except embeddings and the output projection."""
    head = cast(Any, model).get_output_embeddings()
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) or module is head]
    excluded = {id(parameter) for table in tables for parameter in table.parameters()}
    trained = ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)
    return {name for name, weight in trained if weight.dim() == 2 and id(weight) not in excluded}

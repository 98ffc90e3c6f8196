"""Time and memory of the loss and its gradients from decoder states, against the fused losses of other libraries.

Legend: N labels, d model width, V vocabulary.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.fast.modules import summed_loss_without_logits
from hf_vanilla_transformer.model.loss_vanilla_transformer import summed_loss
from hf_vanilla_transformer.presets import preset_config

from .agreement import check_agreement
from .arguments import BenchmarkArguments
from .machine import DTYPES
from .measure import OURS, Case
from .peak import fresh_peak, peak_above_idle

# Maps states (N, d), weights (V, d), labels (N) and the label smoothing to the summed loss.
Loss = Callable[[Tensor, Tensor, Tensor, float], Tensor]
SMOOTHING = 0.1


def loss_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare the loss and gradients of `args.tokens` labels: time, and peak memory in fresh processes."""
    for dtype, preset, vocab_size in product(args.dtype, args.preset, args.vocab_size):
        inputs = make_inputs(preset, vocab_size, args.tokens, dtype, args.device, args.seed)
        losses = available_losses(args.device)
        results = {name: _loss_and_gradients(loss, *inputs) for name, loss in losses.items()}
        for name, result in results.items():
            check_agreement(results[OURS], result, name, dtype)
        name = f"{args.tokens:,} x {preset_config(preset).d_model}, vocabulary {vocab_size:,}, {dtype}"
        works = {implementation: _work(loss, *inputs) for implementation, loss in losses.items()}
        yield Case("loss", name, works, args.tokens, "tokens", dtype)
        sizes = {"preset": preset, "vocab_size": vocab_size, "labels": args.tokens, "dtype": dtype}
        peaks = {
            implementation: fresh_peak(peak_of_loss, loss=implementation, **sizes, device=args.device, seed=args.seed)
            for implementation in losses
        }
        yield Case("loss", f"memory, {name}", peaks, dtype=dtype, quantity="bytes", rounds=1, warm_up=False)


def peak_of_loss(
    loss: str, preset: str, vocab_size: int, labels: int, dtype: str, device: str, seed: int, threads: int
) -> int:
    """Return the peak bytes of a loss and its gradients; call it in a fresh process."""
    torch.set_num_threads(threads)
    small, large = (make_inputs(preset, vocab_size, count, dtype, device, seed) for count in (2, labels))
    chosen = available_losses(device)[loss]
    _work(chosen, *small)()
    return peak_above_idle(_work(chosen, *large), device)


def make_inputs(
    preset: str, vocab_size: int, labels: int, dtype: str, device: str, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random states (N, d), an output projection (V, d) and labels (N)."""
    torch.manual_seed(seed)
    width = preset_config(preset).d_model
    states = torch.randn(labels, width, device=device).to(DTYPES[dtype]).requires_grad_()
    weight = nn.Parameter((torch.randn(vocab_size, width, device=device) * width**-0.5).to(DTYPES[dtype]))
    return states, weight, torch.randint(vocab_size, (labels,), device=device)


def available_losses(device: str) -> dict[str, Loss]:
    """Return the losses available on this machine; two libraries need a GPU."""
    losses: dict[str, Loss] = {OURS: chunked, "logits": with_logits}
    if hasattr(F, "linear_cross_entropy"):
        losses["torch linear_cross_entropy"] = by_torch
    if device == "cuda" and find_spec("liger_kernel"):
        losses["liger"] = by_liger
    if device == "cuda" and find_spec("cut_cross_entropy"):
        losses["cut_cross_entropy"] = by_cut_cross_entropy
    return losses


def chunked(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    loss = summed_loss_without_logits(states[None], _head(weight), labels[None], smoothing)
    assert loss is not None
    return loss


def with_logits(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The loss from all logits at once."""
    return summed_loss(F.linear(states, weight)[None], labels[None], smoothing)


def by_torch(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """PyTorch's chunked loss (2.13), plus label smoothing, which it lacks."""
    options = torch.nn.LinearCrossEntropyOptions()
    loss = F.linear_cross_entropy(states, weight, labels, reduction="sum", options=options)
    return loss + _smoothing_term(states, weight, labels, smoothing)


def by_liger(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Liger Kernel's loss, in Triton."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # optional, needs a GPU

    return LigerFusedLinearCrossEntropyLoss(reduction="sum", label_smoothing=smoothing)(weight, states, labels)


def by_cut_cross_entropy(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Apple's cut cross-entropy, in Triton, plus label smoothing, which it lacks."""
    from cut_cross_entropy import linear_cross_entropy  # optional, needs a GPU

    return linear_cross_entropy(states, weight, labels, reduction="sum") + _smoothing_term(
        states, weight, labels, smoothing
    )


def _smoothing_term(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the term that label smoothing adds to the cross-entropy: eps times the sum of h (w_label - mean w)."""
    return smoothing * (states * (weight[labels] - weight.mean(0))).sum(dtype=torch.float32)


def _head(weight: Tensor) -> nn.Linear:
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    head.weight = weight
    return head


def _loss_and_gradients(loss: Loss, states: Tensor, weight: Tensor, labels: Tensor) -> dict[str, Tensor]:
    value = loss(states, weight, labels, SMOOTHING)
    d_states, d_weight = torch.autograd.grad(value, (states, weight))
    return {"loss": value.detach(), "states": d_states, "weight": d_weight}


def _work(loss: Loss, *inputs: Tensor) -> Callable[[], None]:
    def work() -> None:
        _loss_and_gradients(loss, *inputs)

    return work

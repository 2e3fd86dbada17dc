"""One affine coupling of Real NVP (paper, equation 16) and its gradient, written out.

A training step at the sizes of tables costs what its number of operations costs, not its arithmetic. So a coupling is
two plain functions on tensors, called by one autograd function for the whole stack (`realnvp.py`): automatic
differentiation would record some twenty nodes here, and twice that on the way back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu_

SLOPE = 0.01  # of the LeakyReLU


class Layer(NamedTuple):
    """A linear layer of both networks; [0] of each tensor is that of the scale, [1] that of the shift."""

    weight: Tensor  # (2, inputs, outputs)
    bias: Tensor  # (2, 1, outputs)
    transposed: Tensor  # (2, outputs, inputs), a view of the weight


class Trace(NamedTuple):
    """What the backward pass of a coupling needs, beside the hidden units."""

    kept: Tensor  # (2, n, a)
    scale: Tensor  # (n, b)
    factor: Tensor  # exp(scale)
    changed: Tensor  # (n, b): x_b, of whichever direction


def couple(
    kept: Tensor, changed: Tensor, layers: list[Layer], hidden: tuple[Tensor, ...], decode: bool
) -> tuple[Tensor, Trace]:
    """Scale and shift the features `changed` (n, b) by amounts computed from the features `kept` (n, a).

    With s and t two networks of the same shape, s ending in a tanh (so that a feature is scaled by at most e)::

        encode:  z_b = x_b exp(s(x_a)) + t(x_a)        log|det dz/dx| =  sum_j s_j(x_a)
        decode:  x_b = (z_b - t(z_a)) exp(-s(z_a))     log|det dx/dz| = -sum_j s_j(z_a)

    The units of each hidden layer are written into `hidden`, (2, n, width) each.
    """
    both = units = kept.expand(2, -1, -1)  # one input for both networks
    for layer, out in zip(layers, hidden, strict=False):
        units = leaky_relu_(torch.bmm(units, layer.weight, out=out).add_(layer.bias), SLOPE)
    scale, shift = torch.bmm(units, layers[-1].weight).add_(layers[-1].bias).unbind()
    scale = scale.tanh()
    factor = scale.exp()
    if decode:
        changed = (changed - shift).div_(factor)
        return changed, Trace(both, scale, factor, changed)
    return torch.addcmul(shift, changed, factor), Trace(both, scale, factor, changed)


def couple_backward(
    trace: Trace,
    layers: list[Layer],
    grad_layers: list[Layer],
    hidden: tuple[Tensor, ...],
    grad_hidden: tuple[Tensor, ...],
    grad: Tensor,
    grad_log_det: Tensor,
    decode: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients by `kept` and `changed`, given those by the result (n, b) and by the log-determinant (n, 1).

    The gradients by the first and the last weight and by the last bias are written into `grad_layers`; those by what
    went into the hidden units into `grad_hidden`, for the caller to make the other weights' from, all at once.
    """
    kept, scale, factor, changed = trace
    if decode:  # d(result)/ds = -result, d(result)/dt = -exp(-s), and the log-determinant is -sum s
        grad_changed = grad / factor
        grad_scale = torch.ops.aten.tanh_backward(torch.addcmul(grad_log_det, grad, changed), scale)
        grad_out = torch.stack((grad_scale, grad_changed)).neg_()
    else:
        grad_changed = grad * factor
        grad_scale = torch.ops.aten.tanh_backward(torch.addcmul(grad_log_det, grad_changed, changed), scale)
        grad_out = torch.stack((grad_scale, grad))
    torch.bmm(hidden[-1].transpose(1, 2), grad_out, out=grad_layers[-1].weight)
    torch.sum(grad_out, 1, keepdim=True, out=grad_layers[-1].bias)
    for n in range(len(hidden) - 1, -1, -1):  # a unit's sign is that of what went into its LeakyReLU
        grad_out = torch.bmm(grad_out, layers[n + 1].transposed)
        grad_out = torch.ops.aten.leaky_relu_backward.grad_input(
            grad_out, hidden[n], SLOPE, True, grad_input=grad_hidden[n]
        )
    torch.bmm(kept.transpose(1, 2), grad_out, out=grad_layers[0].weight)
    return torch.bmm(grad_out, layers[0].transposed).sum(0), grad_changed

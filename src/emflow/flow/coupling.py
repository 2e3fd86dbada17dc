"""One affine coupling of Real NVP (paper, equation 16) and its gradient, written out.

A training step at the sizes of tables costs what its number of operations costs, not its arithmetic. So a coupling is
two plain functions on tensors, called for the whole stack by `realnvp.Pass`: automatic differentiation would record
some twenty nodes here, and twice that on the way back. Features come first and rows second, since a half of the
features is then one piece of memory, and the products are of the shapes that BLAS likes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu_

SLOPE = 0.01  # of the LeakyReLU


class Layer(NamedTuple):
    """A linear layer of both networks; [0] of each tensor is that of the scale, [1] that of the shift."""

    weight: Tensor  # (2, outputs, inputs)
    bias: Tensor  # (2, outputs, 1)
    transposed: Tensor  # (2, inputs, outputs), a view of the weight


class Trace(NamedTuple):
    """What the backward pass of a coupling needs."""

    inputs: list[Tensor]  # of each layer, (2, width, n); of the first one the features kept
    scale: Tensor  # (b, n)
    factor: Tensor  # exp(scale)
    changed: Tensor  # (b, n): x_b, of whichever direction


def couple(kept: Tensor, changed: Tensor, layers: list[Layer], decode: bool) -> tuple[Tensor, Trace]:
    """Scale and shift the features `changed` (b, n) by amounts computed from the features `kept` (a, n).

    With s and t two networks of the same shape, s ending in a tanh (so that a feature is scaled by at most e)::

        encode:  z_b = x_b exp(s(x_a)) + t(x_a)        log|det dz/dx| =  sum_j s_j(x_a)
        decode:  x_b = (z_b - t(z_a)) exp(-s(z_a))     log|det dx/dz| = -sum_j s_j(z_a)
    """
    units = kept.expand(2, -1, -1)  # one input for both networks
    inputs = [units]
    for layer in layers[:-1]:
        units = leaky_relu_(torch.baddbmm(layer.bias, layer.weight, units), SLOPE)
        inputs.append(units)
    scale, shift = torch.baddbmm(layers[-1].bias, layers[-1].weight, units).unbind()
    scale = scale.tanh()
    factor = scale.exp()
    if decode:
        changed = (changed - shift).div_(factor)
        return changed, Trace(inputs, scale, factor, changed)
    return torch.addcmul(shift, changed, factor), Trace(inputs, scale, factor, changed)


def couple_backward(
    trace: Trace,
    layers: list[Layer],
    grad_layers: list[Layer] | None,
    grad_kept: Tensor,
    grad: Tensor,
    grad_log_det: Tensor,
    decode: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients by `kept` and `changed`, given those by both (a, n), (b, n) and by the log-determinant (n,).

    The gradients by weights and biases are written into `grad_layers`, if it is given, layer by layer, while what they
    are made from is still in the processor's cache.
    """
    inputs, scale, factor, changed = trace
    if decode:  # d(result)/ds = -result, d(result)/dt = -exp(-s), and the log-determinant is -sum s
        grad_changed = grad / factor
        grad_scale = torch.ops.aten.tanh_backward(torch.addcmul(grad_log_det, grad, changed), scale)
        grad_out = torch.stack((grad_scale, grad_changed)).neg_()
    else:
        grad_changed = grad * factor
        grad_scale = torch.ops.aten.tanh_backward(torch.addcmul(grad_log_det, grad_changed, changed), scale)
        grad_out = torch.stack((grad_scale, grad))
    for n in range(len(layers) - 1, -1, -1):
        if grad_layers is not None:
            torch.bmm(grad_out, inputs[n].mT, out=grad_layers[n].weight)
            torch.sum(grad_out, 2, keepdim=True, out=grad_layers[n].bias)
        if n:  # a unit's sign is that of what went into its LeakyReLU
            grad_out = torch.bmm(layers[n].transposed, grad_out)
            grad_out = torch.ops.aten.leaky_relu_backward(grad_out, inputs[n], SLOPE, True)
    # the sum over both networks is one product
    return torch.addmm(grad_kept, layers[0].weight.flatten(0, 1).mT, grad_out.flatten(0, 1)), grad_changed

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
    """What the backward pass of a coupling needs."""

    activations: list[Tensor]  # input of each layer, (2, n, inputs)
    scale: Tensor  # (n, changed)
    factor: Tensor  # exp(scale), or exp(-scale) when decoding
    product: Tensor  # the part of the result that depends on the factor


def couple(kept: Tensor, changed: Tensor, layers: list[Layer], decode: bool) -> tuple[Tensor, Trace]:
    """Scale and shift the features `changed` (n, b) by amounts computed from the features `kept` (n, a).

    With s and t two networks of the same shape, s ending in a tanh (so that a feature is scaled by at most e)::

        encode:  z_b = x_b exp(s(x_a)) + t(x_a)        log|det dz/dx| =  sum_j s_j(x_a)
        decode:  x_b = (z_b - t(z_a)) exp(-s(z_a))     log|det dx/dz| = -sum_j s_j(z_a)
    """
    activations = [kept.expand(2, -1, -1)]  # one input for both networks
    for weight, bias, _ in layers[:-1]:
        activations.append(leaky_relu_(torch.bmm(activations[-1], weight).add_(bias), SLOPE))
    weight, bias, _ = layers[-1]
    scale, shift = torch.bmm(activations[-1], weight).add_(bias).unbind()
    scale = scale.tanh()
    if decode:
        factor = (-scale).exp_()
        product = (changed - shift).mul_(factor)
        return product, Trace(activations, scale, factor, product)
    factor = scale.exp()
    product = changed * factor
    return product + shift, Trace(activations, scale, factor, product)


def couple_backward(
    trace: Trace, layers: list[Layer], grad_layers: list[Layer], grad: Tensor, grad_log_det: Tensor, decode: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients by `kept` and `changed`, given those by the result (n, b) and by the log-determinant (n, 1).

    The gradients by the weights are written into `grad_layers`.
    """
    activations, scale, factor, product = trace
    grad_changed = grad * factor
    # d(product)/ds is the product when encoding and its negative when decoding; so is the sign of the log-determinant
    grad_scale = torch.ops.aten.tanh_backward(torch.addcmul(grad_log_det, grad, product), scale)
    grad_out = torch.stack((grad_scale, grad_changed)).neg_() if decode else torch.stack((grad_scale, grad))
    for n in range(len(layers) - 1, -1, -1):
        torch.bmm(activations[n].transpose(1, 2), grad_out, out=grad_layers[n].weight)
        torch.sum(grad_out, 1, keepdim=True, out=grad_layers[n].bias)
        grad_out = torch.bmm(grad_out, layers[n].transposed)
        if n:  # the activation's sign is that of what went into the LeakyReLU
            grad_out = torch.ops.aten.leaky_relu_backward(grad_out, activations[n], SLOPE, True)
    return grad_out.sum(0), grad_changed

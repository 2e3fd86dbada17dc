"""Real NVP for images: couplings with convolutional networks, whose size does not grow with that of the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, leaky_relu_, pad

from emflow.flow.coupling import SLOPE
from emflow.flow.realnvp import RealNVP

LAST_LAYER = 0.1  # its initial weights are smaller by this factor, so that the flow starts near the identity


class Convolution(NamedTuple):
    """A layer of a coupling's network, in views of the flat parameter."""

    kernel: Tensor  # (outputs, inputs, 3, 3), stored with the inputs last, which is how conv2d is fastest
    bias: Tensor  # (outputs,)


class ImageFlow(nn.Module):
    r"""A stack of affine couplings (equation 16) on images of h x w pixels with c channels.

    A checkerboard cuts the image into halves. Of every block of two by two pixels each half has the two on one
    diagonal, so a half is a dense image of 2c channels and half the height and width; an odd side is padded by a row
    or column that stays zero. Couplings come in pairs: the first one passes the first half through and changes the
    second, the second one the other way round. In every second pair of a colour image the odd channels have changed
    sides before, so that the channels of a pixel also see each other. One network of 3x3 convolutions gives the scale
    and the shift of a coupling.

    Deviation: the paper's networks are fully connected, which takes 340 million weights for images of 32 x 32 x 3. The
    initial weights are uniform in +-1/sqrt(fan-in), but for the last layer of each network: there they are a tenth of
    it, which led to a higher likelihood of digits under a Gaussian with full covariance.

    Parameters
    ----------
    image_shape : sequence of int
        (h, w) or (h, w, c). A row of x and z is the flat image in this order.
    n_couplings : int
        Number of couplings; the paper has six. Without couplings the flow is the identity.
    width : int
        Channels in each hidden layer of the networks.
    depth : int
        Number of hidden layers of the networks, at least 1.
    generator : torch.Generator or None
        Draws the initial weights.
    """

    odd: Tensor
    inside: Tensor

    def __init__(
        self,
        image_shape: Sequence[int],
        n_couplings: int = 6,
        width: int = 32,
        depth: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = tuple(image_shape)
        self.n_couplings, self.width, self.depth = n_couplings, width, depth
        height, wide, channels = self.image_shape if len(self.image_shape) == 3 else (*self.image_shape, 1)
        self.sides = height, wide, channels
        self.n_channels = 2 * channels  # of a half
        self.weights = nn.Parameter(torch.zeros(sum(self._sizes())))
        for *hidden, last in self._cut(self.weights.detach()):
            for layer in (*hidden, last):
                bound = (LAST_LAYER if layer is last else 1) / math.sqrt(layer.kernel[0].numel())
                layer.kernel.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
        odd = torch.arange(self.n_channels) % channels % 2 == 1
        self.register_buffer("odd", odd[:, None, None], persistent=False)
        plain = self._halves(torch.ones(1, math.prod(self.sides)))
        inside = torch.stack([torch.cat(halves) for halves in (plain, self._trade(plain))])
        # which entries are pixels and not padding, by kind of pair and by half
        self.register_buffer("inside", inside > 0, persistent=False)

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments that make a flow of this shape."""
        return {
            "image_shape": list(self.image_shape),
            "n_couplings": self.n_couplings,
            "width": self.width,
            "depth": self.depth,
        }

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z = f^{-1}(x) (n, p) and log|det dz/dx| (n,), the determinant of equation 3."""
        return self.transform(x, self.weights, decode=False)

    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return x = f(z) (n, p) and log|det dx/dz| (n,)."""
        return self.transform(z, self.weights, decode=True)

    def walk(self, x: Tensor, decode: bool = False) -> ImagePass:
        """Walk the stack once, in either direction, and keep what its gradient needs."""
        return ImagePass(self, x, decode)

    def transform(self, x: Tensor, weights: Tensor, decode: bool) -> tuple[Tensor, Tensor]:
        """Encode or decode with the given weights; automatic differentiation can follow both x and the weights."""
        networks = self._cut(weights)
        halves, log_det = self._halves(x), x.new_zeros(len(x))
        for n in range(self.n_couplings)[:: -1 if decode else 1]:
            colour = n // 2 % 2 if self.sides[2] > 1 else 0  # whether the odd channels change sides in this pair
            halves = self._trade(halves) if colour else halves
            kept, changed = halves[n % 2], halves[1 - n % 2]
            scale, shift = _network(networks[n], kept).mul(self.inside[colour, 1 - n % 2].repeat(2, 1, 1)).chunk(2, 1)
            scale = scale.tanh()
            halves[1 - n % 2] = (changed - shift) / scale.exp() if decode else changed * scale.exp() + shift
            log_det = log_det + scale.sum((1, 2, 3))
            halves = self._trade(halves) if colour else halves
        return self._join(halves), -log_det if decode else log_det

    def _halves(self, x: Tensor) -> list[Tensor]:
        """Cut flat images (n, p) by the checkerboard into halves (n, 2c, h/2, w/2), stored with the channels last."""
        height, width, channels = self.sides
        image = pad(x.reshape(-1, *self.sides), (0, 0, 0, width % 2, 0, height % 2))
        blocks = image.reshape(len(x), (height + 1) // 2, 2, (width + 1) // 2, 2, channels)
        upper, lower = blocks.unbind(2)
        diagonals = torch.stack((upper, lower.flip(3)), 4)  # (n, h/2, w/2, 2, 2, c): block, diagonal, row, channel
        return [half.flatten(3).permute(0, 3, 1, 2) for half in diagonals.unbind(3)]

    def _join(self, halves: list[Tensor]) -> Tensor:
        """Undo `_halves`."""
        height, width, channels = self.sides
        diagonals = torch.stack([half.permute(0, 2, 3, 1).unflatten(3, (2, channels)) for half in halves], 3)
        upper, lower = diagonals.unbind(4)
        image = torch.stack((upper, lower.flip(3)), 2).flatten(3, 4).flatten(1, 2)
        return image[:, :height, :width].flatten(1)

    def _trade(self, halves: list[Tensor]) -> list[Tensor]:
        """Let the odd channels of the halves change sides; doing it twice undoes it."""
        first, second = halves
        return [torch.where(self.odd, second, first), torch.where(self.odd, first, second)]

    def _units(self) -> list[int]:
        """Return the channels before and after each layer of a network; the last one gives both scale and shift."""
        return [self.n_channels, *[self.width] * self.depth, 2 * self.n_channels]

    def _sizes(self) -> list[int]:
        """Return the numbers of weights in each kernel and bias, coupling by coupling and layer by layer."""
        return [size for a, b in pairwise(self._units()) for size in (9 * a * b, b)] * self.n_couplings

    def _cut(self, flat: Tensor) -> list[list[Convolution]]:
        """Cut a flat tensor of all weights into layers by coupling."""
        parts = iter(flat.split(self._sizes()))
        return [
            [
                Convolution(next(parts).view(outputs, 3, 3, inputs).permute(0, 3, 1, 2), next(parts))
                for inputs, outputs in pairwise(self._units())
            ]
            for _ in range(self.n_couplings)
        ]


def _network(layers: list[Convolution], units: Tensor) -> Tensor:
    """Return scale, before its tanh, and shift (n, 4c, h/2, w/2) from the half that is kept (n, 2c, h/2, w/2)."""
    for layer in layers[:-1]:
        units = leaky_relu_(conv2d(units, layer.kernel, layer.bias, padding=1), SLOPE)
    return conv2d(units, layers[-1].kernel, layers[-1].bias, padding=1)


class ImagePass:
    """The stack walked once, in either direction, with what its gradient needs; the same surface as `realnvp.Pass`.

    Convolutions take nearly all of the time here, so that automatic differentiation, which is on even where the caller
    has switched it off, costs little.

    Attributes
    ----------
    result : Tensor of shape (n, p)
    log_det : Tensor of shape (n,)
    """

    def __init__(self, flow: ImageFlow, x: Tensor, decode: bool = False) -> None:
        self._inputs = x.detach().requires_grad_(), flow.weights.detach().requires_grad_()
        with torch.enable_grad():
            self._outputs = flow.transform(*self._inputs, decode)
        self.result, self.log_det = (output.detach() for output in self._outputs)

    def pull_back(self, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients by x and by the weights, given those by the result and by the log-determinant."""
        by_x, by_weights = self._gradients(self._inputs, grad, grad_log_det)
        return by_x, by_weights

    def pull_back_to_x(self, grad: Tensor, grad_log_det: Tensor) -> Tensor:
        """Return the gradient by x alone."""
        return self._gradients(self._inputs[:1], grad, grad_log_det)[0]

    def _gradients(self, inputs: tuple[Tensor, ...], grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor, ...]:
        result, log_det = self._outputs
        with torch.enable_grad():  # a sum, since without couplings the log-determinant alone has no gradient
            total = (result * grad).sum() + (log_det * grad_log_det).sum()
        return torch.autograd.grad(total, inputs, retain_graph=True, materialize_grads=True)


Flow: TypeAlias = RealNVP | ImageFlow


def make_flow(shape: dict[str, Any], generator: torch.Generator | None = None) -> Flow:
    """Make a flow of the given `shape`, that of an `ImageFlow` or of a `RealNVP`; `load_state_dict` does the rest."""
    return (ImageFlow if "image_shape" in shape else RealNVP)(**shape, generator=generator)

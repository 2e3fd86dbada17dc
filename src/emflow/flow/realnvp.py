"""Real NVP (paper, section 3.2 and appendix A): the invertible map between data x and latent z."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from emflow.flow.coupling import Layer, Trace, couple, couple_backward


class _Views(NamedTuple):
    """The parameter in parts, a buffer for its gradient, and the shuffles between pairs."""

    layers: list[list[Layer]]  # by coupling
    gradient: Tensor
    grad_layers: list[list[Layer]]
    shuffles: list[Tensor]  # [k] leads from the order of pair k - 1 to that of pair k; the last one to that of x
    inverses: list[Tensor]


class RealNVP(nn.Module):
    r"""A stack of affine couplings: z = f^{-1}(x), with f the paper's f_psi.

    Couplings come in pairs. A pair shuffles the features and cuts them into halves; its first coupling passes the
    first half through and changes the second, its second one the other way round. Without couplings the flow is the
    identity. All weights are one parameter, which keeps the optimiser's step to one operation.

    Parameters
    ----------
    n_features : int
        p, the number of columns of x and z.
    n_couplings : int
        Number of couplings; the paper has six.
    width : int or None
        Units in each hidden layer of the scale and shift networks; None means p.
    depth : int
        Number of hidden layers of these networks, at least 1.
    generator : torch.Generator or None
        Draws the halves and the initial weights, which are uniform in +-1/sqrt(fan-in).
    """

    orders: Tensor

    def __init__(
        self,
        n_features: int,
        n_couplings: int = 6,
        width: int | None = None,
        depth: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.n_first = n_features // 2  # features in the first half
        self.width, self.depth, self.n_couplings = width or n_features, depth, n_couplings
        orders = [torch.randperm(n_features, generator=generator) for _ in range(0, n_couplings, 2)]
        # row k: the features in the order in which pair k sees them
        self.register_buffer(
            "orders", torch.stack(orders) if orders else torch.zeros((0, n_features), dtype=torch.long)
        )
        self.weights = nn.Parameter(
            torch.zeros(sum(2 * b * (a + 1) for units in self._shapes() for a, b in pairwise(units)))
        )
        for layer in (layer for layers in self._cut(self.weights.detach()) for layer in layers):
            bound = 1 / math.sqrt(max(layer.weight.shape[2], 1))
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
        self._views: tuple[Any, _Views] | None = None

    @property
    def shape(self) -> dict[str, int]:
        """The arguments that make a flow of this shape."""
        return {
            "n_features": self.orders.shape[1],
            "n_couplings": self.n_couplings,
            "width": self.width,
            "depth": self.depth,
        }

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z = f^{-1}(x) (n, p) and log|det dz/dx| (n,), the determinant of equation 3."""
        return self._apply_to(x, decode=False)

    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return x = f(z) (n, p) and log|det dx/dz| (n,)."""
        return self._apply_to(z, decode=True)

    def _apply_to(self, x: Tensor, decode: bool) -> tuple[Tensor, Tensor]:
        if not (self.n_couplings or torch.is_grad_enabled()):  # the identity, from which tables start: no need to walk
            return x, x.new_zeros(len(x))
        return _Differentiable.apply(x, self.weights, self, decode)  # type: ignore[no-any-return, no-untyped-call]

    def walk(self, x: Tensor, decode: bool = False) -> Pass:
        """Walk the stack once, in either direction, and keep what its gradient needs."""
        return Pass(self, x, decode)

    def views(self) -> _Views:
        """Return the parts of the parameter; they alias it, so they are made anew only when it has moved."""
        key = (self.weights.data_ptr(), self.weights.dtype, self.weights.device)
        if self._views is None or self._views[0] != key:
            weights = self.weights.detach()
            gradient = torch.zeros_like(weights)
            identity = torch.arange(self.orders.shape[1], device=weights.device)[None]
            orders = torch.cat([identity, self.orders, identity])
            shuffles = [before.argsort()[after] for before, after in pairwise(orders)]
            inverses = [shuffle.argsort() for shuffle in shuffles]
            self._views = (key, _Views(self._cut(weights), gradient, self._cut(gradient), shuffles, inverses))
        return self._views[1]

    def _shapes(self) -> list[list[int]]:
        """Return by coupling the units of each layer of its networks: features kept, hidden ones, features changed."""
        halves = self.n_first, self.orders.shape[1] - self.n_first
        hidden = [self.width] * self.depth
        return [[halves[n % 2], *hidden, halves[1 - n % 2]] for n in range(self.n_couplings)]

    def _cut(self, flat: Tensor) -> list[list[Layer]]:
        """Cut a flat tensor of all weights, or of their gradient, into layers by coupling."""
        result: list[list[Layer]] = []
        start = 0
        for units in self._shapes():
            result.append([])
            for inputs, outputs in pairwise(units):
                stop = start + 2 * outputs * inputs
                end = stop + 2 * outputs
                weight = flat[start:stop].view(2, outputs, inputs)
                result[-1].append(Layer(weight, flat[stop:end].view(2, outputs, 1), weight.mT))
                start = end
        return result

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._views = None  # the shuffles follow from the orders
        return super().load_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_views": None}  # type: ignore[no-untyped-call]


class Pass:
    """The stack walked once, in either direction, with what its gradient needs.

    Attributes
    ----------
    result : Tensor of shape (n, p)
    log_det : Tensor of shape (n,)
    """

    def __init__(self, flow: RealNVP, x: Tensor, decode: bool = False) -> None:
        self.flow, self.decode = flow, decode
        self.traces: list[Trace] = []
        layers, _, _, shuffles, inverses = flow.views()
        walk = _Walk(x, flow.n_first, inverses if decode else shuffles, flow.n_couplings, decode)
        for n in walk:
            kept, changed = walk.halves[n % 2], walk.halves[1 - n % 2]
            walk.halves[1 - n % 2], trace = couple(kept, changed, layers[n], decode)
            self.traces.append(trace)
        log_det = torch.cat([t.scale for t in self.traces]).sum(0) if self.traces else x.new_zeros(len(x))
        self.result, self.log_det = walk.result(), -log_det if decode else log_det

    def pull_back(self, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients by x and by the weights, given those by the result and by the log-determinant."""
        by_x = self._walk_back(grad, grad_log_det, self.flow.views().grad_layers)
        return by_x, self.flow.views().gradient.clone()  # a copy: the next pass writes into the same buffer

    def pull_back_to_x(self, grad: Tensor, grad_log_det: Tensor) -> Tensor:
        """Return the gradient by x alone."""
        return self._walk_back(grad, grad_log_det, [None] * self.flow.n_couplings)

    def _walk_back(self, grad: Tensor, grad_log_det: Tensor, grad_layers: Sequence[list[Layer] | None]) -> Tensor:
        flow, decode = self.flow, self.decode
        layers, _, _, shuffles, inverses = flow.views()
        walk = _Walk(grad, flow.n_first, shuffles if decode else inverses, flow.n_couplings, not decode)
        for n, trace in zip(walk, reversed(self.traces), strict=True):
            halves = walk.halves[n % 2], walk.halves[1 - n % 2]
            walk.halves[n % 2], walk.halves[1 - n % 2] = couple_backward(
                trace, layers[n], grad_layers[n], *halves, grad_log_det, decode
            )
        return walk.result()


class _Differentiable(torch.autograd.Function):
    """A pass as one node of the graph of automatic differentiation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, flow: RealNVP, decode: bool) -> tuple[Tensor, Tensor]:
        ctx.taken = Pass(flow, x, decode)
        return ctx.taken.result, ctx.taken.log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *ctx.taken.pull_back(grad, grad_log_det), None, None


class _Walk:
    """Walk over the couplings, first to last or last to first, and shuffle the features between the pairs.

    On the walk features come first, (p, n); what goes in and what comes out has the rows first, as everywhere else.
    """

    def __init__(self, x: Tensor, n_first: int, shuffles: list[Tensor], n_couplings: int, backwards: bool) -> None:
        self.n_first, self.shuffles, self.n_couplings, self.backwards = n_first, shuffles, n_couplings, backwards
        self.halves = [x.mT.contiguous()]

    def __iter__(self) -> Iterator[int]:
        last = self.n_couplings - 1
        for n in range(last, -1, -1) if self.backwards else range(last + 1):
            if self.backwards and (n == last or n % 2 == 1):
                self._shuffle(n // 2 + 1)
            elif not self.backwards and n % 2 == 0:
                self._shuffle(n // 2)
            yield n

    def _shuffle(self, k: int) -> None:
        joined = torch.cat(self.halves).index_select(0, self.shuffles[k])
        self.halves = [joined[: self.n_first], joined[self.n_first :]]

    def result(self) -> Tensor:
        shuffle = self.shuffles[0 if self.backwards else -1]
        return torch.cat(self.halves).index_select(0, shuffle).mT.contiguous()

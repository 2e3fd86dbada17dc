"""Real NVP (paper, section 3.2 and appendix A): the invertible map between data x and latent z."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from emflow.flow.coupling import Layer, Trace, couple, couple_backward


class _Parts(NamedTuple):
    """A flat tensor of all weights, or of their gradient, cut into views."""

    layers: list[list[Layer]]  # by coupling
    hidden_weights: Tensor  # (layers between hidden units, couplings, 2, width, width)
    hidden_biases: Tensor  # (hidden layers, couplings, 2, 1, width)


class _Views(NamedTuple):
    """The parameter in parts, a buffer for its gradient, and the shuffles between pairs."""

    weights: _Parts
    gradient: Tensor
    grads: _Parts
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
        self.weights = nn.Parameter(torch.zeros(sum(map(math.prod, self._shapes()))))
        for layer in (layer for layers in self._cut(self.weights.detach()).layers for layer in layers):
            bound = 1 / math.sqrt(max(layer.weight.shape[1], 1))
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
        return _Pass.apply(x, self.weights, self, False)  # type: ignore[no-any-return, no-untyped-call]

    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return x = f(z) (n, p) and log|det dx/dz| (n,)."""
        return _Pass.apply(z, self.weights, self, True)  # type: ignore[no-any-return, no-untyped-call]

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

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parts: what is alike in all couplings first, then the ends of each coupling."""
        width, depth, count = self.width, self.depth, self.n_couplings
        halves = self.n_first, self.orders.shape[1] - self.n_first
        shapes: list[tuple[int, ...]] = [(depth - 1, count, 2, width, width), (depth, count, 2, 1, width)]
        for n in range(count):
            kept, changed = halves[n % 2], halves[1 - n % 2]
            shapes += [(2, kept, width), (2, width, changed), (2, 1, changed)]
        return shapes

    def _cut(self, flat: Tensor) -> _Parts:
        shapes = self._shapes()
        weights, biases, *ends = (p.view(s) for p, s in zip(flat.split([*map(math.prod, shapes)]), shapes, strict=True))
        layers = []
        for n in range(self.n_couplings):
            first, last, last_bias = ends[3 * n : 3 * n + 3]
            pairs = zip([first, *weights[:, n], last], [*biases[:, n], last_bias], strict=True)
            layers.append([Layer(weight, bias, weight.mT) for weight, bias in pairs])
        return _Parts(layers, weights, biases)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._views = None  # the shuffles follow from the orders
        return super().load_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_views": None}  # type: ignore[no-untyped-call]


class _Pass(torch.autograd.Function):
    """The whole stack in either direction as one node of the graph. The backward pass walks it the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, flow: RealNVP, decode: bool) -> tuple[Tensor, Tensor]:
        views = flow.views()
        traces: list[Trace] = []
        hidden = x.new_empty(flow.depth, flow.n_couplings, 2, len(x), flow.width)
        units = _by_coupling(hidden)
        walk = _Walk(x, flow.n_first, views.inverses if decode else views.shuffles, flow.n_couplings, decode)
        for n in walk:
            kept, changed = walk.halves[n % 2], walk.halves[1 - n % 2]
            walk.halves[1 - n % 2], trace = couple(kept, changed, views.weights.layers[n], units[n], decode)
            traces.append(trace)
        log_det = torch.cat([t.scale for t in traces], 1).sum(1) if traces else x.new_zeros(len(x))
        ctx.flow, ctx.decode, ctx.traces, ctx.hidden, ctx.units = flow, decode, traces, hidden, units
        return walk.result(), -log_det if decode else log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor, Tensor, None, None]:
        flow, hidden, decode = ctx.flow, ctx.hidden, ctx.decode
        weights, gradient, grads, shuffles, inverses = flow.views()
        column = grad_log_det[:, None]
        grad_hidden = torch.empty_like(hidden)
        grad_units = _by_coupling(grad_hidden)
        walk = _Walk(grad, flow.n_first, shuffles if decode else inverses, flow.n_couplings, not decode)
        for n, trace in zip(walk, reversed(ctx.traces), strict=True):
            layers, units = (weights.layers[n], grads.layers[n]), (ctx.units[n], grad_units[n])
            grad_kept, walk.halves[1 - n % 2] = couple_backward(
                trace, *layers, *units, walk.halves[1 - n % 2], column, decode
            )
            walk.halves[n % 2] = walk.halves[n % 2] + grad_kept
        # the hidden layers of all couplings have one shape: their weights' gradients are one product
        before, after = hidden[:-1].flatten(0, 2), grad_hidden[1:].flatten(0, 2)
        torch.bmm(before.mT, after, out=grads.hidden_weights.view(-1, flow.width, flow.width))
        torch.sum(grad_hidden, 3, keepdim=True, out=grads.hidden_biases)
        # a copy: the engine may still hold what an earlier pass of the same step returned
        return walk.result(), gradient.clone(), None, None


def _by_coupling(hidden: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the hidden layers (2, n, width) of each coupling, as views."""
    depth, count = hidden.shape[:2]
    layers = hidden.flatten(0, 1).unbind()
    return [layers[n : depth * count : count] for n in range(count)]


class _Walk:
    """Walk over the couplings, first to last or last to first, and shuffle the features between the pairs."""

    def __init__(self, x: Tensor, n_first: int, shuffles: list[Tensor], n_couplings: int, backwards: bool) -> None:
        self.n_first, self.shuffles, self.n_couplings, self.backwards = n_first, shuffles, n_couplings, backwards
        self.halves = [x]

    def __iter__(self) -> Iterator[int]:
        last = self.n_couplings - 1
        for n in range(last, -1, -1) if self.backwards else range(last + 1):
            if self.backwards and (n == last or n % 2 == 1):
                self._shuffle(n // 2 + 1)
            elif not self.backwards and n % 2 == 0:
                self._shuffle(n // 2)
            yield n

    def _shuffle(self, k: int) -> None:
        joined = torch.cat(self.halves, 1).index_select(1, self.shuffles[k])
        self.halves = [joined[:, : self.n_first], joined[:, self.n_first :]]

    def result(self) -> Tensor:
        return torch.cat(self.halves, 1).index_select(1, self.shuffles[0 if self.backwards else -1])

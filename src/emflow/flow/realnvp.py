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


class _Views(NamedTuple):
    """The flat parameter and a buffer for its gradient, cut into layers, and the shuffles; all by coupling or pair."""

    layers: list[list[Layer]]
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
        Number of hidden layers of these networks.
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
        self.shape: dict[str, int | None] = {
            "n_features": n_features,
            "n_couplings": n_couplings,
            "width": width,
            "depth": depth,
        }
        self.n_first = n_features // 2  # features in the first half
        self.layer_sizes = []  # (inputs, outputs) of each layer of each coupling
        for n in range(n_couplings):
            ends = (self.n_first, n_features - self.n_first)
            sizes = [ends[n % 2], *[width or n_features] * depth, ends[1 - n % 2]]
            self.layer_sizes.append(list(pairwise(sizes)))
        orders, weights = [], [torch.zeros(0)]
        for n, layers in enumerate(self.layer_sizes):
            if n % 2 == 0:
                orders.append(torch.randperm(n_features, generator=generator))
            for inputs, outputs in layers:
                bound = 1 / math.sqrt(max(inputs, 1))
                part = torch.empty(2 * (inputs + 1) * outputs)
                weights.append(part.uniform_(-bound, bound, generator=generator))
        # row k: the features in the order in which pair k sees them
        self.register_buffer(
            "orders", torch.stack(orders) if orders else torch.zeros((0, n_features), dtype=torch.long)
        )
        self.weights = nn.Parameter(torch.cat(weights))
        self._views: tuple[Any, _Views] | None = None

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

    def _cut(self, flat: Tensor) -> list[list[Layer]]:
        sizes = [2 * size for layers in self.layer_sizes for i, o in layers for size in (i * o, o)]
        parts = iter(flat.split(sizes))

        def layer(inputs: int, outputs: int) -> Layer:
            weight = next(parts).view(2, inputs, outputs)
            return Layer(weight, next(parts).view(2, 1, outputs), weight.mT)

        return [[layer(*size) for size in sizes] for sizes in self.layer_sizes]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_views": None}  # type: ignore[no-untyped-call]


class _Pass(torch.autograd.Function):
    """The whole stack in either direction as one node of the graph. The backward pass walks it the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, flow: RealNVP, decode: bool) -> tuple[Tensor, Tensor]:
        views = flow.views()
        traces: list[Trace] = []
        walk = _Walk(x, flow.n_first, views.inverses if decode else views.shuffles, len(views.layers), decode)
        for n in walk:
            walk.halves[1 - n % 2], trace = couple(walk.halves[n % 2], walk.halves[1 - n % 2], views.layers[n], decode)
            traces.append(trace)
        log_det = torch.cat([t.scale for t in traces], 1).sum(1) if traces else x.new_zeros(len(x))
        ctx.flow, ctx.decode, ctx.traces = flow, decode, traces
        return walk.result(), -log_det if decode else log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor, Tensor, None, None]:
        views = ctx.flow.views()
        column = grad_log_det[:, None]
        shuffles = views.shuffles if ctx.decode else views.inverses
        walk = _Walk(grad, ctx.flow.n_first, shuffles, len(views.layers), not ctx.decode)
        for n, trace in zip(walk, reversed(ctx.traces), strict=True):
            grad_kept, walk.halves[1 - n % 2] = couple_backward(
                trace, views.layers[n], views.grad_layers[n], walk.halves[1 - n % 2], column, ctx.decode
            )
            walk.halves[n % 2] = walk.halves[n % 2] + grad_kept
        # a copy: the engine may still hold what an earlier pass of the same step returned
        return walk.result(), views.gradient.clone(), None, None


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

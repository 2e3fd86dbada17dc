"""The E-step: a Gaussian conditioned on another set of observed coordinates in every row.

Everything is written with one operator. For each row let b be a subset of the coordinates; `solve(v)` applies the
inverse of the block M_bb of one matrix M to v_b and pads with zeros. With d = z - mean, zero where z is missing
(P = inv(cov), m = missing, o = observed), equations 6 and 19 become

    smaller m:   z_hat_m = mean_m - solve(d P)_m       M = P,   b = m,    cov(z_m | z_o) = inv(P_mm)
    smaller o:   z_hat_m = mean_m + (solve(d) cov)_m   M = cov, b = o,    cov(z_m | z_o) = (cov - cov E cov)_mm

where E is inv(cov_oo) padded with zeros. Each row takes the cheaper of the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from emflow.latent.gaussian import Gaussian, stable_cholesky
from emflow.latent.online_em import Statistics
from emflow.latent.patterns import Group, Layout

CG_STEPS = 1000
MEAN_ONLY = "made for the mean only: there are no inverses"


class Conditional:
    """N(mean, cov) given the observed coordinates of every row; made once per batch and used for all of its needs.

    Parameters
    ----------
    gaussian : Gaussian
        It is a constant: no gradient flows into it.
    layout : Layout
        The missing values of the rows, from `Patterns.layout`.
    generator : torch.Generator or None
        Source of the draws that stand for conditional covariances in wide data.
    mean_only : bool
        Nothing but `mean` will be asked for: factors are enough, and inverses, two thirds of the work, are not made.

    Attributes
    ----------
    retries : int
        How often a factorisation was repeated with a larger diagonal, or conjugate gradients stopped short.
    """

    def __init__(
        self, gaussian: Gaussian, layout: Layout, generator: torch.Generator | None = None, mean_only: bool = False
    ) -> None:
        self.gaussian, self.layout = gaussian, layout
        blocks = _Factors if mean_only else _Blocks
        self.by_observed = blocks(gaussian.cov, layout.by_observed) if layout.n_by_observed else None
        self.by_missing: list[_Blocks | _Factors | _ConjugateGradients] = []
        if layout.by_missing:
            self.by_missing.append(blocks(gaussian.precision, layout.by_missing))
        if layout.too_large is not None:
            missing = layout.missing.index_select(0, layout.too_large)
            self.by_missing.append(_ConjugateGradients(gaussian, missing, layout.too_large, generator))

    @property
    def retries(self) -> int:
        observed = self.by_observed.retries if self.by_observed else 0
        return self.gaussian.retries + observed + sum(part.retries for part in self.by_missing)

    def mean(self, z: Tensor) -> Tensor:
        """Return z_hat (n, p): z where observed, its conditional mean where missing. Equations 6 and 13."""
        mean, missing = self.gaussian.mean, self.layout.missing
        centred = (z.to(mean.dtype) - mean).masked_fill_(missing, 0)
        filled = mean - self._solve_missing(centred @ self.gaussian.precision) if self.by_missing else mean
        if self.by_observed is not None:
            filled = filled + self.by_observed.solve(centred) @ self.gaussian.cov
        return torch.where(missing, filled.to(z.dtype), z)

    def residual(self, noise: Tensor) -> Tensor:
        """Return how far draws are from `mean` (n, p), zero where observed, given standard normal noise (n, p).

        A row w drawn from N(mean, cov) is as far from its own conditional mean, given w_o, as a draw should be.
        """
        w = torch.addmm(self.gaussian.mean, noise, self.gaussian.cholesky.mT)
        return w - self.mean(w)

    def deviation(self) -> Tensor:
        """Return the conditional standard deviations (n, p), zero where observed; not for wide data."""
        missing = self.layout.missing
        variance = self.gaussian.cov.diagonal().expand(missing.shape).clone()
        for part in self.by_missing:
            part.put_diagonal(variance)
        if self.by_observed is not None:
            self.by_observed.take_explained(variance)
        return variance.masked_fill_(~missing, 0).clamp_min_(0).sqrt_()

    def pull_back(self, grad: Tensor) -> Tensor:
        """Return the gradient by z (n, p), given that by z_hat: the mean is linear, and its factors are at hand."""
        grad_hat = grad.to(self.gaussian.mean.dtype)
        grad_missing = grad_hat.masked_fill(~self.layout.missing, 0)
        result = grad_hat
        if self.by_missing:
            result = result - self._solve_missing(grad_missing) @ self.gaussian.precision
        if self.by_observed is not None:
            result = result + self.by_observed.solve(grad_missing @ self.gaussian.cov)
        return result.masked_fill(self.layout.missing, 0).to(grad.dtype)

    def statistics(self, z_hat: Tensor, weight: Tensor | None = None) -> Statistics:
        """Return count, sum of E[z] and sum of E[zz'] over the rows, given their conditional means (appendix B).

        With weights (n,) a row counts as if it were there so many times.
        """
        z_hat = z_hat.to(self.gaussian.mean.dtype)
        cov = torch.zeros_like(self.gaussian.cov)
        for part in self.by_missing:
            cov += part.total_inverse(weight)
        if self.by_observed is not None:
            spread = self.gaussian.cov @ self.by_observed.total_inverse(weight) @ self.gaussian.cov
            cov += self._count_by_observed(weight) * self.gaussian.cov - spread
        if weight is None:
            return Statistics(len(z_hat), z_hat.sum(0), torch.addmm(cov, z_hat.mT, z_hat))
        weighted = z_hat * weight[:, None]
        return Statistics(float(weight.sum()), weighted.sum(0), torch.addmm(cov, weighted.mT, z_hat))

    def _count_by_observed(self, weight: Tensor | None) -> float:
        """Return how many rows go by their observed coordinates, or what they weigh together."""
        if weight is None:
            return self.layout.n_by_observed
        missing = self.layout.missing
        go = 2 * missing.sum(1) > missing.shape[1]
        if self.layout.too_large is not None:
            go = go.index_fill(0, self.layout.too_large, False)
        return float(weight[go].sum())

    def _solve_missing(self, v: Tensor) -> Tensor:
        first, *others = (part.solve(v) for part in self.by_missing)
        for other in others:  # of other rows
            first += other
        return first


class _Gathered:
    """The blocks matrix[b, b], group by group.

    The padding of a block takes its entries from an identity that is appended to the matrix: see `Group.index`. So it
    is an identity in the inverse, too, and `solve` copies v there: v is zero outside b, or the result is not looked at.
    """

    def __init__(self, matrix: Tensor, groups: list[Group]) -> None:
        self.matrix, self.groups, self.retries = torch.block_diag(matrix, torch.eye(len(matrix)).to(matrix)), groups, 0

    def _factor(self, group: Group) -> Tensor:
        n, k = group.index.shape
        block = self.matrix.flatten().index_select(0, self._places(group)).view(n, k, k)
        factor, retries = stable_cholesky(block)
        self.retries += retries
        return factor

    def _places(self, group: Group) -> Tensor:
        """Where the entries of the blocks lie in the flattened matrix."""
        return torch.add(group.index[:, None, :], group.index[:, :, None], alpha=len(self.matrix)).flatten()


class _Blocks(_Gathered):
    """The inverses of the blocks, made once for all that is asked of them."""

    def __init__(self, matrix: Tensor, groups: list[Group]) -> None:
        super().__init__(matrix, groups)
        self.inverses = [torch.cholesky_inverse(self._factor(group)) for group in groups]

    def solve(self, v: Tensor) -> Tensor:
        """Apply the inverse of each row's block to that row of v (n, p); zero or v itself outside the block."""
        result = torch.zeros_like(v)
        for group, inverse in zip(self.groups, self.inverses, strict=True):
            own = inverse if group.which is None else inverse.index_select(0, group.which)
            result.put_(group.cells, torch.bmm(own, v.take(group.cells)[:, :, None]))
        return result

    def put_diagonal(self, result: Tensor) -> None:
        """Write the diagonal of the inverse of each row's block to its cells in that row of result (n, p)."""
        for group, inverse in zip(self.groups, self.inverses, strict=True):
            diagonal = inverse.diagonal(dim1=1, dim2=2)
            result.put_(group.cells, diagonal if group.which is None else diagonal.index_select(0, group.which))

    def take_explained(self, result: Tensor) -> None:
        """Subtract from each row of result (n, p) the variance that the block's coordinates explain: diag(M E M)."""
        p = result.shape[1]
        for group, inverse in zip(self.groups, self.inverses, strict=True):
            across = self.matrix[:, :p].index_select(0, group.index.flatten()).view(*group.index.shape, p)
            explained = (torch.bmm(inverse, across) * across).sum(1)
            own = explained if group.which is None else explained.index_select(0, group.which)
            result.index_add_(0, group.cells[:, 0] // p, own, alpha=-1)

    def total_inverse(self, weight: Tensor | None = None) -> Tensor:
        """Sum the inverses over all rows, by weight (n,), each at its place in a (p, p) matrix of zeros."""
        total = torch.zeros_like(self.matrix)
        p = len(total) // 2
        for group, inverse in zip(self.groups, self.inverses, strict=True):
            count = group.count if weight is None else group.total(weight, p)
            weighted = inverse if group.which is None and weight is None else inverse * count[:, None, None]
            total.view(-1).scatter_add_(0, self._places(group).long(), weighted.flatten())
        return total[:p, :p]


class _Factors(_Gathered):
    """`_Blocks` for a single `solve`: Cholesky factors do, and those of one group are gone before the next."""

    def solve(self, v: Tensor) -> Tensor:
        result = torch.zeros_like(v)
        for group in self.groups:
            factor = self._factor(group)
            own = factor if group.which is None else factor.index_select(0, group.which)
            result.put_(group.cells, torch.cholesky_solve(v.take(group.cells)[:, :, None], own))
        return result

    def put_diagonal(self, result: Tensor) -> None:
        raise ValueError(MEAN_ONLY)

    take_explained = put_diagonal

    def total_inverse(self, weight: Tensor | None = None) -> Tensor:
        raise ValueError(MEAN_ONLY)


class _ConjugateGradients:
    """The contract of `_Blocks` for rows whose block of the precision P is too large to be factorised.

    All of them go together: the product with the blocks P_mm is one product of the zero-padded rows with P.
    """

    def __init__(
        self, gaussian: Gaussian, missing: Tensor, rows: Tensor, generator: torch.Generator | None = None
    ) -> None:
        self.gaussian, self.observed, self.rows, self.generator = gaussian, ~missing, rows, generator
        self.retries = 0

    def solve(self, v: Tensor) -> Tensor:
        """Apply the inverse of each row's block to that row of v (n, p); zero elsewhere."""
        return torch.zeros_like(v).index_copy_(0, self.rows, self._solve(v.index_select(0, self.rows)))

    def _solve(self, v: Tensor) -> Tensor:
        """Solve P_mm x_m = v_m in every row by conjugate gradients, preconditioned by the diagonal of P.

        A row is frozen as soon as it has converged, so that its answer does not depend on the rows beside it, and
        those that are frozen are left out as soon as they are a quarter of all.
        """
        precision = self.gaussian.precision
        diagonal = precision.diagonal()
        observed, residual = self.observed, v.masked_fill(self.observed, 0)
        x, scaled = torch.zeros_like(v), residual / diagonal
        direction = scaled
        energy = (residual * scaled).sum(1)
        enough = energy * torch.finfo(v.dtype).eps  # relative error sqrt(eps), in the norm of the preconditioner
        result, at = x, torch.arange(len(v), device=v.device)
        for _ in range(CG_STEPS):
            active = energy > enough
            n_active = int(active.sum())
            if 4 * n_active <= 3 * len(at):
                result[at] = x
                if not n_active:
                    return result
                at, observed, residual, x, direction, energy, enough = (
                    part[active] for part in (at, observed, residual, x, direction, energy, enough)
                )
                active = active[active]
            product = (direction @ precision).masked_fill_(observed, 0)
            step = torch.where(active, energy / (direction * product).sum(1), 0)[:, None]
            x = torch.addcmul(x, step, direction)
            residual = torch.addcmul(residual, step, product, value=-1)
            scaled = residual / diagonal
            new_energy = (residual * scaled).sum(1)
            direction = torch.addcmul(scaled, torch.where(active, new_energy / energy, 0)[:, None], direction)
            energy = torch.where(active, new_energy, energy)
        self.retries += 1
        result[at] = x
        return result

    def put_diagonal(self, result: Tensor) -> None:
        raise ValueError("the conditional variances of wide data are not computed: draw instead")

    def total_inverse(self, weight: Tensor | None = None) -> Tensor:
        """Estimate the sum of the inverses, by weight (n,), without bias, from one draw of N(0, inv(P_mm)) per row.

        (inv(L') u)_m, with cov = L L' and u standard normal, has covariance P_mm; its solution has inv(P_mm).
        """
        if self.generator is None:
            raise ValueError("statistics of wide data are drawn: give Conditional a generator")
        cholesky = self.gaussian.cholesky
        noise = torch.randn(self.observed.shape, generator=self.generator, dtype=cholesky.dtype).to(cholesky.device)
        draws = self._solve(torch.linalg.solve_triangular(cholesky.mT, noise.mT, upper=True).mT.contiguous())
        return (draws if weight is None else draws * weight.index_select(0, self.rows)[:, None]).mT @ draws

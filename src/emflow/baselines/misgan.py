"""MisGAN (Li, Jiang and Marlin, ICLR 2019): generators of images and of holes, and an imputer, each with a critic."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from emflow.base import Imputer
from emflow.baselines.gain import row_noise
from emflow.baselines.misgan_networks import LATENT, Networks
from emflow.baselines.steps import take_steps
from emflow.errors import DataError
from emflow.limits import BOOLEAN, DEVICE, NOT_NEGATIVE, POSITIVE, SECONDS, SEED, integer
from emflow.table.schema import Array
from emflow.threads import few_threads

TEMPERATURE = 0.66  # of the sigmoid that gives patterns of observed pixels
PENALTY = 10.0  # weight of the gradient penalty
LOSSES = ("data_critic_loss", "observed_critic_loss", "imputer_critic_loss")
CHUNK = 2**9  # images that are filled together


class MisGANImputer(Imputer):
    """Fill missing pixels of images by MisGAN.

    One generator makes complete images G(z), another one patterns of observed pixels H(z'), both from 128 normal
    numbers; an imputer I fills real images x whose observed pixels are m (1 = observed) and whose holes hold uniform
    noise. Each has a critic that tells its work from what it should be like:

    - D of images with holes set to 0: real ones m x from generated ones H(z') G(z);
    - E of patterns: real ones m from generated ones H(z');
    - F of complete images: generated ones G(z) from filled ones I(x, m).

    A critic, say D, goes down its Wasserstein loss with a gradient penalty, at points u between real and fake ones::

        mean D(fake) - mean D(real) + 10 mean (|grad D(u)| - 1)^2

    After `n_critic_steps` of these for each critic, the other three networks take one step, each by its own loss, all
    gradients being taken before the first of them moves::

        H:  - mean E(H(z')) - alpha mean D(H(z') G(z))
        G:  - mean D(H(z') G(z)) + beta mean F(G(z))
        I:  - mean F(I(x, m))

    Parameters
    ----------
    n_steps : int
        Steps of the generators. The default is what 1000 epochs of MNIST are, the length of their published runs.
    n_critic_steps : int
        Steps of each critic before one of the generators.
    batch_size : int
        Images per step, drawn without replacement.
    learning_rate : float
        Of Adam, for both generators and their critics.
    imputer_learning_rate : float
        Of Adam, for the imputer and its critic.
    data_weight : float
        Alpha: what the critic of images counts in the loss of the generator of patterns.
    imputer_weight : float
        Beta: what the imputer's critic counts in the loss of the generator of images.
    width : int
        Channels of the convolutions on the grid of half the image, two and four times as many on coarser ones. The time
        of a step goes with its square.
    max_time : float or None
        Seconds after which training stops; `timed_out_` tells.
    device : str
        "cpu", or a CUDA device.
    random_state : int, RandomState or None
        Seeds every random choice. Nothing is seeded globally.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    networks_ : Networks
        The six fitted networks.
    history_ : list of dict
        Every hundred steps the losses of the three critics, averaged since the last record, and the seconds of training
        until then.
    timed_out_ : bool
        Whether `max_time` ended the training.

    Notes
    -----
    The noise in the holes of an image that is filled comes from a hash of that image and of the seed: `transform` gives
    an image the same answer wherever it stands, and learns nothing from it.

    The imputer sees the noisy image alone, not the pattern beside it: the default of their code. It has four linear
    layers as wide as the image if there is one channel, else a U-shaped network of convolutions. Patterns have one
    channel if all channels of a pixel are always missing together, else one per channel.

    Deviation: the term with beta is the one of their paper, where the distance between generated and filled images is a
    loss of both networks. In their code it does not depend on the generator, so that beta has no effect.

    Deviation: their networks are made for images of 28 x 28 and 64 x 64 pixels. Ours are made for any size, from
    convolutions that halve a grid (rounded up) and transposed ones that double it; for 28 x 28 pixels number, grids and
    channels of the critics' layers are theirs, and the generators start from their grid of 4 x 4 with 256 channels.
    Images with channels have the same generators and critics, where theirs have one more level and normalisations; the
    U-shaped network ends, like theirs, on a grid of 2 x 2.
    """

    limits: ClassVar[dict[str, Any]] = {
        "n_steps": integer(1),
        "n_critic_steps": integer(1),
        "batch_size": integer(1),
        "learning_rate": POSITIVE,
        "imputer_learning_rate": POSITIVE,
        "data_weight": NOT_NEGATIVE,
        "imputer_weight": NOT_NEGATIVE,
        "width": integer(1),
        "max_time": SECONDS,
        "device": DEVICE,
        "random_state": SEED,
        "verbose": BOOLEAN,
    }
    clip = True  # the sigmoid does it already, up to rounding

    def __init__(
        self,
        *,
        n_steps: int = 187_400,
        n_critic_steps: int = 5,
        batch_size: int = 64,
        learning_rate: float = 1e-4,
        imputer_learning_rate: float = 2e-4,
        data_weight: float = 0.1,
        imputer_weight: float = 0.1,
        width: int = 64,
        max_time: float | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_steps = n_steps
        self.n_critic_steps = n_critic_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.imputer_learning_rate = imputer_learning_rate
        self.data_weight = data_weight
        self.imputer_weight = imputer_weight
        self.width = width
        self.max_time = max_time
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, *, missing: Any = None) -> MisGANImputer:
        """Learn from images X (n, h, w) or (n, h, w, c), missing where NaN or where `missing` says so; `y` is not used.

        `missing` is an array of bool of the shape of X, or (n, h, w) for whole pixels.
        """
        X = self._read_new(X, missing)
        if self.image_shape_ is None:
            raise DataError("MisGANImputer takes images, an array of shape (n, h, w) or (n, h, w, c), but X is a table")
        seed = self._seed()
        x, holes = (to_images(rows, self.image_shape_) for rows in self._tensors(X))
        training = _Training(self, x.float(), per_pixel(~holes).float(), torch.Generator().manual_seed(seed))
        with few_threads(self.batch_size * X.shape[1]):
            self.history_, self.timed_out_ = take_steps(
                training.step, LOSSES, self.n_steps, self.max_time, "MisGAN", bool(self.verbose)
            )
        self.networks_ = training.networks.double().eval()
        self.noise_seed_ = seed
        return self

    def _complete(self, X: Array) -> Tensor:
        x, missing = self._tensors(X)
        chunks = zip(x.split(CHUNK), missing.split(CHUNK), strict=True)
        return torch.cat([self._fill(rows.double(), holes).to(x.dtype) for rows, holes in chunks])

    @torch.no_grad()
    def _fill(self, x: Tensor, missing: Tensor) -> Tensor:
        noise = torch.from_numpy(row_noise(x.masked_fill(missing, -1).cpu().numpy(), self.noise_seed_)).to(x)
        assert self.image_shape_ is not None
        images = to_images(torch.where(missing, noise, x), self.image_shape_)
        filled = self.networks_.imputer(images).sigmoid().permute(0, 2, 3, 1).reshape(x.shape)
        return torch.where(missing, filled, x)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "networks_")


class _Training:
    """The networks and their optimisers while they learn from images x (n, c, h, w) with holes where observed is 0."""

    def __init__(self, imputer: MisGANImputer, x: Tensor, observed: Tensor, draws: torch.Generator) -> None:
        self.imputer, self.x, self.observed, self.draws = imputer, x, observed, draws
        _, channels, h, w = x.shape
        self.networks = Networks(h, w, channels, observed.shape[1], imputer.width, draws).to(x)
        self.optimisers = {}
        for name, network in self.networks.named_children():
            rate = imputer.imputer_learning_rate if name in ("imputer", "imputer_critic") else imputer.learning_rate
            self.optimisers[name] = torch.optim.Adam(network.parameters(), lr=rate, betas=(0.5, 0.9), fused=True)

    def step(self) -> Tensor:
        """Let the critics take their steps, then generators and imputer one; return the last losses of the critics."""
        for _ in range(self.imputer.n_critic_steps):
            rows = torch.randperm(len(self.x), generator=self.draws)[: self.imputer.batch_size].to(self.x.device)
            x, observed = self.x.index_select(0, rows), self.observed.index_select(0, rows)
            losses = self.improve_critics(x, observed)
        self.improve_generators(x, observed)
        return losses

    def improve_critics(self, x: Tensor, observed: Tensor) -> Tensor:
        """Let each critic take a step; return their losses."""
        with torch.no_grad():
            data, pattern, imputed = self.generate(x, observed)
        pairs = {
            "data_critic": (masked(x, observed), masked(data, pattern)),
            "observed_critic": (observed, pattern),
            "imputer_critic": (data, imputed),
        }
        losses = {}
        for name, (genuine, fake) in pairs.items():
            share = torch.rand(len(x), 1, 1, 1, generator=self.draws).to(x)
            losses[name] = critic_loss(self.networks.get_submodule(name), genuine, fake, share)
        self._descend(losses)
        return torch.stack([loss.detach() for loss in losses.values()]).cpu()

    def improve_generators(self, x: Tensor, observed: Tensor) -> None:
        """Let both generators and the imputer take a step."""
        weights = self.imputer.data_weight, self.imputer.imputer_weight
        self._descend(generator_losses(self.networks, *self.generate(x, observed), *weights))

    def generate(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return as many new images and new patterns as x has, and x filled."""
        first, second = torch.randn(2, len(x), LATENT, generator=self.draws).to(x)
        data = self.networks.data_generator(first).sigmoid()
        pattern = stretched_sigmoid(self.networks.observed_generator(second))
        noise = torch.rand(x.shape, generator=self.draws).to(x)
        filled = self.networks.imputer(masked(x, observed, noise)).sigmoid()
        return data, pattern, masked(x, observed, filled)

    def _descend(self, losses: dict[str, Tensor]) -> None:
        """Let each of the named networks take a step by its loss, after the gradients of all of them are known."""
        for name, loss in losses.items():
            parameters = self.optimisers[name].param_groups[0]["params"]
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        for name in losses:
            self.optimisers[name].step()


def masked(x: Tensor, observed: Tensor, fill: Tensor | float = 0.0) -> Tensor:
    """Return x where observed is 1 and `fill` where it is 0; a mixture in between."""
    return observed * x + (1 - observed) * fill


def stretched_sigmoid(logits: Tensor) -> Tensor:
    """Return the sigmoid at a low temperature, stretched to (-0.1, 1.1) and clipped to [0, 1]: it reaches both ends."""
    return (1.2 * (logits / TEMPERATURE).sigmoid() - 0.1).clamp(0, 1)


def critic_loss(critic: nn.Module, genuine: Tensor, fake: Tensor, share: Tensor) -> Tensor:
    """Return mean D(fake) - mean D(genuine), and the penalty of slopes other than 1 at a mixture of both.

    share : (n, 1, 1, 1), of the genuine images in the mixture.
    """
    of_genuine, of_fake = critic(torch.cat((genuine, fake))).chunk(2)
    penalty = gradient_penalty(critic, share * genuine + (1 - share) * fake)
    return of_fake.mean() - of_genuine.mean() + PENALTY * penalty


def gradient_penalty(critic: nn.Module, x: Tensor) -> Tensor:
    """Return the mean over the images x of (|grad D(x)| - 1)^2."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


def generator_losses(
    networks: Networks, data: Tensor, pattern: Tensor, imputed: Tensor, alpha: float, beta: float
) -> dict[str, Tensor]:
    """Return the losses of generators and imputer, by name, as the docstring of `MisGANImputer` has them."""
    by_data = networks.data_critic(masked(data, pattern)).mean()
    return {
        "observed_generator": -networks.observed_critic(pattern).mean() - alpha * by_data,
        "data_generator": -by_data + beta * networks.imputer_critic(data).mean(),
        "imputer": -networks.imputer_critic(imputed).mean(),
    }


def to_images(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return rows (n, p) of images of shape (h, w) or (h, w, c) as (n, c, h, w)."""
    return rows.view(len(rows), *shape[:2], -1).permute(0, 3, 1, 2)


def per_pixel(observed: Tensor) -> Tensor:
    """Return a pattern (n, c, h, w) with one channel only if all are alike."""
    first = observed[:, :1]
    return first if (observed == first).all() else observed

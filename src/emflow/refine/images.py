"""The learned E-step for images: a convolutional network corrects the conditional mean.

Trained by hiding: in every training image further observed pixels are hidden, the model fills the image, and the
network learns what is missing from that fill to the values that were hidden. It starts at zero, where nothing is
corrected, and needs no complete image.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from emflow.errors import DivergedError
from emflow.order import shuffled
from emflow.progress import progress
from emflow.threads import few_threads

BATCH = 128
RATE = 2e-3  # of Adam; rises for a tenth of the steps, then falls to zero along a cosine
SHARE = 0.2, 0.6  # of an image's observed pixels that are hidden, drawn for each image
CHUNK = 500  # images that are corrected together
ENOUGH = 20_000  # images to train with

Complete = Callable[[Tensor, Tensor], Tensor]  # rows with anything in their missing cells, `missing` -> completed


class ImageNetwork(nn.Module):
    """A U-shaped network from a filled image, and which of its pixels were filled, to a correction of the fill.

    Works on blocks of 2 x 2 pixels: residual convolutions there and on a grid half as fine. Images whose sides are no
    multiples of four are padded inside.

    Parameters
    ----------
    image_shape : sequence of int
        (h, w) or (h, w, c).
    width : int
        Channels of the finer grid; the coarser one has twice as many.
    generator : torch.Generator or None
        Draws the initial weights. The last layer is zero.
    """

    kind = "image"

    def __init__(self, image_shape: Sequence[int], width: int = 48, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.image_shape, self.width = tuple(image_shape), width
        channels = (*image_shape, 1)[2]
        self.stem = nn.utils.skip_init(nn.Conv2d, 12 * channels, width, 3, padding=1)
        self.fine = nn.Sequential(_Residual(width), _Residual(width))
        self.down = nn.utils.skip_init(nn.Conv2d, width, 2 * width, 3, stride=2, padding=1)
        self.coarse = nn.Sequential(_Residual(2 * width), _Residual(2 * width))
        self.up = nn.utils.skip_init(nn.Conv2d, 2 * width, 4 * width, 1)
        self.last = nn.Sequential(_Residual(width), nn.utils.skip_init(nn.Conv2d, width, 4 * channels, 3, padding=1))
        for name, parameter in self.named_parameters():
            if name.startswith("last.1") or parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.kaiming_normal_(parameter, generator=generator)

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        return {"image_shape": list(self.image_shape), "width": self.width}

    def ready(self) -> ImageNetwork:
        """Return the network as it is used, after its weights were set."""
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    @torch.no_grad()
    def complete(self, x_hat: Tensor, missing: Tensor, clip: bool) -> Tensor:
        """Return x_hat (n, p) with its missing pixels corrected."""
        chunks = []
        for filled, holes in zip(x_hat.split(CHUNK), missing.split(CHUNK), strict=True):
            better = filled + self(filled, holes)
            chunks.append(torch.where(holes, better.clamp(0, 1) if clip else better, filled))
        return torch.cat(chunks)

    def forward(self, x_hat: Tensor, missing: Tensor) -> Tensor:
        """Return the correction (n, p) for filled images as rows x_hat (n, p)."""
        h, w, c = (*self.image_shape, 1)[:3]
        centred = x_hat - 0.5
        images = torch.stack((centred, centred.masked_fill(missing, 0), missing.to(x_hat)), 1).view(-1, 3, h, w, c)
        planes = images.permute(0, 1, 4, 2, 3).reshape(-1, 3 * c, h, w)
        planes = functional.pad(planes, (0, -w % 4, 0, -h % 4), mode="replicate")
        fine = self.stem(functional.pixel_unshuffle(planes, 2).contiguous(memory_format=torch.channels_last))
        fine = self.fine(fine)
        fine = fine + functional.pixel_shuffle(self.up(self.coarse(self.down(fine))), 2)
        return functional.pixel_shuffle(self.last(fine), 2)[:, :, :h, :w].permute(0, 2, 3, 1).reshape(x_hat.shape)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.utils.skip_init(nn.Conv2d, width, width, 3, padding=1)
        self.second = nn.utils.skip_init(nn.Conv2d, width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(functional.relu(self.first(functional.relu(x)))) * 0.5  # type: ignore[no-any-return]


def hide_pixels(missing: Tensor, image_shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Choose further pixels to hide: of every image another share of those observed. Return them as bool (n, p)."""
    channels = (*image_shape, 1)[2]
    low, high = SHARE
    n, p = missing.shape
    share = low + (high - low) * torch.rand(n, 1, generator=generator)
    drawn = torch.rand(n, p // channels, generator=generator) < share
    return drawn.repeat_interleave(channels, 1).to(missing.device) & ~missing


def fit_images(
    x: Tensor,
    missing: Tensor,
    complete: Complete,
    image_shape: Sequence[int],
    n_steps: int,
    generator: torch.Generator,
    max_time: float = math.inf,
    verbose: bool = False,
    weight: Tensor | None = None,
) -> tuple[ImageNetwork, list[dict[str, Any]]]:
    """Return the network that learnt to correct the completion of the images x (n, p), and a history.

    Parameters
    ----------
    complete : callable
        The completion, of rows with anything in their missing cells.
    max_time : float
        Seconds after which training stops; the rate is then still high, and the network worse than it could be.
    weight : Tensor of shape (n,), optional
        Images are shown in proportion to it.
    """
    rows = shuffled(len(x), generator, weight)[:ENOUGH].to(x.device)
    holes, truth = missing.index_select(0, rows), x.index_select(0, rows)
    repeats = max(1, ENOUGH // len(x))  # few images are shown with other holes again and again
    further = hide_pixels(holes.repeat(repeats, 1), image_shape, generator)
    filled = torch.cat([complete(truth, holes | part) for part in further.split(len(holes))])
    return fit_network(filled, holes, further, truth, image_shape, generator, n_steps, max_time, verbose)


def fit_network(
    x_hat: Tensor,
    missing: Tensor,
    hidden: Tensor,
    truth: Tensor,
    image_shape: Sequence[int],
    generator: torch.Generator,
    n_steps: int,
    max_time: float = math.inf,
    verbose: bool = False,
) -> tuple[ImageNetwork, list[dict[str, Any]]]:
    """Return the network that learnt to correct x_hat (m, p) at its hidden pixels, and a history.

    Parameters
    ----------
    x_hat : Tensor
        The n images one or several times, m = n, 2n, ..., filled where they are missing and where they are hidden.
    missing : Tensor
        True in (n, p) where the value of a pixel is not known.
    hidden : Tensor
        True in (m, p) where it is known and was hidden.
    truth : Tensor
        The n images with their observed values, the hidden ones included.
    max_time : float
        Seconds after which training stops; the rate is then still high, and the network worse than it could be.
    """
    network = ImageNetwork(image_shape, generator=generator).to(x_hat).ready()
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    started, losses = time.monotonic(), []
    history: list[dict[str, Any]] = []
    with few_threads(BATCH * x_hat.shape[1]):
        for step in (bar := progress(range(1, n_steps + 1), desc="refine", unit="step", verbose=verbose)):
            rows = torch.randint(len(x_hat), (min(BATCH, len(x_hat)),), generator=generator).to(x_hat.device)
            images = rows % len(truth)
            filled, target = x_hat.index_select(0, rows), hidden.index_select(0, rows)
            holes = missing.index_select(0, images) | target
            error = (filled + network(filled, holes) - truth.index_select(0, images)) * target
            loss = error.square().sum() / target.sum().clamp_min(1)
            for group in optimiser.param_groups:
                group["lr"] = RATE * _schedule(step / n_steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
            late = time.monotonic() - started > max_time
            if step % 100 == 0 or step == n_steps or late:
                rmse = torch.stack(losses).mean().sqrt().item()
                if not math.isfinite(rmse):
                    raise DivergedError(f"the loss of the network is not finite at step {step}")
                history.append({"step": step, "rmse": rmse, "seconds": time.monotonic() - started})
                bar.set_postfix(rmse=rmse)
                losses.clear()
            if late:
                break
    return network, history


def _schedule(progress: float) -> float:
    return min(progress / 0.1, 0.5 * (1 + math.cos(math.pi * progress)))

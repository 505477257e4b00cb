"""Images by scattering: moduli of wavelets of moduli of wavelets, averaged; nothing is learnt.

Joan Bruna and Stephane Mallat, "Invariant Scattering Convolution Networks", IEEE TPAMI 2013, with
the Morlet wavelets that are usual for images (Oyallon and Mallat, CVPR 2015): scale j = 0, 1 has a
Gaussian envelope of standard deviation 0.8 * 2^j pixels, centre frequency 3 pi / 4 / 2^j, slant 1/2
(4 over the number of angles) and 8 angles; the average is a Gaussian of 1.6 pixels, kept at every
fourth pixel. 81 paths a channel: the average, 16 of one wavelet, 64 of two.

Features are normalised within each record: 27 groups of paths, mean 0 and variance 1 each. Linear
models of such features are what Florian Tramer and Dan Boneh ("Differentially Private Learning
Needs Better Features (or Much More Data)", ICLR 2021) found to beat private convolutional nets.
A map that is fixed beforehand and looks at one record at a time costs no privacy.

The setting `upright` of `mnist_scattering` shears every image first, along its rows, so that its
ink has no slant: handwriting leans, and a linear model need not learn how much.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from dpjax.data.source import SOURCES, register
from experiments.data_sets import cifar10_subset  # noqa: F401 - registers what is mapped here.

if TYPE_CHECKING:
    import jax

SCALES, ANGLES = 2, 8
KEPT = 2**SCALES
"""One pixel in so many, along each axis, is kept."""
PATHS = 1 + SCALES * ANGLES + ANGLES * ANGLES
GROUPS = 27

_MARGIN = 8
"""Images are padded with zeros to the next multiple of this."""
_SMALLEST_VARIANCE = 1e-5


def _padded(side: int) -> int:
    return -(-side // _MARGIN) * _MARGIN


def shape(of_inputs: tuple[int, ...]) -> tuple[int, ...]:
    """(height, width, channels) -> (height / 4, width / 4, 81 channels), of the padded image."""
    height, width, channels = of_inputs
    return _padded(height) // KEPT, _padded(width) // KEPT, PATHS * channels


def _wavelet(sides: tuple[int, int], scale: int, angle: float) -> np.ndarray:
    """A Morlet wavelet on a periodic grid of these sides, complex128: its sum is 0."""
    deviation, frequency, slant = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, 4 / ANGLES
    cosine, sine = np.cos(angle), np.sin(angle)
    gabor, envelope = np.zeros(sides, complex), np.zeros(sides)
    # Envelopes end within a few periods of the smallest grid.
    for down in range(-3, 4):
        for across in range(-3, 4):
            y, x = np.mgrid[: sides[0], : sides[1]]
            y, x = y + down * sides[0], x + across * sides[1]
            along, beside = cosine * y + sine * x, cosine * x - sine * y
            weight = np.exp(-(along**2 + (slant * beside) ** 2) / (2 * deviation**2))
            gabor += weight * np.exp(1j * frequency * along)
            envelope += weight
    morlet = gabor - gabor.sum() / envelope.sum() * envelope
    return morlet / (2 * np.pi * deviation**2 / slant)


def _average(sides: tuple[int, int]) -> np.ndarray:
    """A Gaussian on the periodic grid, float64: its sum is 1."""
    deviation = 0.8 * 2 ** (SCALES - 1)
    lines = []
    for side in sides:
        places = np.arange(side)[:, None] + side * np.arange(-4, 5)
        line = np.exp(-(places**2) / (2 * deviation**2)).sum(axis=1)
        lines.append(line / line.sum())
    return np.outer(*lines)


@functools.cache
def _filters(sides: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Spectra on the full grid, real: wavelets (scales, angles, h, w), average (h, w), float32."""
    angles = np.pi * np.arange(ANGLES) / ANGLES
    wavelets = [[_wavelet(sides, scale, angle) for angle in angles] for scale in range(SCALES)]
    spectra = np.fft.fft2(np.asarray(wavelets)).real, np.fft.fft2(_average(sides)).real
    return spectra[0].astype(np.float32), spectra[1].astype(np.float32)


def _every(spectrum: jax.Array, step: int) -> jax.Array:
    """The spectrum (..., h, w) of an image of which one pixel in `step` is kept: aliases' mean."""
    *rest, height, width = spectrum.shape
    aliases = spectrum.reshape(*rest, step, height // step, step, width // step)
    return aliases.mean(axis=(-4, -2))


def paths(images: jax.Array) -> jax.Array:
    """Scattering coefficients of periodic images (n, height, width), sides multiples of 4.

    Returns (n, 81, height / 4, width / 4) float32: the average, 8 angles of scale 0, 8 of scale 1,
    then for each angle of scale 0 the 8 of scale 1.
    """
    import jax.numpy as jnp
    from jax.numpy import fft

    wavelets, average = _filters(images.shape[1:])
    # On the grid of half the pixels the average is the same filter, sampled there.
    coarse = average.reshape(2, average.shape[0] // 2, 2, average.shape[1] // 2).sum(axis=(0, 2))

    def averaged(spectrum: jax.Array, at: np.ndarray, step: int) -> jax.Array:
        return fft.ifft2(_every(spectrum * at[None, None], step)).real

    image = fft.fft2(images)[:, None]
    fine = fft.fft2(jnp.abs(fft.ifft2(image * wavelets[:1])))
    once = fft.fft2(jnp.abs(fft.ifft2(_every(image * wavelets[1:], 2))))
    twice = fft.fft2(jnp.abs(fft.ifft2(_every(fine[:, :, None] * wavelets[None, 1:], 2))))
    return jnp.concatenate(
        [
            averaged(image, average, KEPT),
            averaged(fine, average, KEPT),
            averaged(once, coarse, KEPT // 2),
            averaged(twice.reshape(len(images), -1, *twice.shape[3:]), coarse, KEPT // 2),
        ],
        axis=1,
    )


def scattering(images: jax.Array) -> jax.Array:
    """Normalised scattering features of images (n, height, width, channels); traceable.

    Sides are padded with zeros, evenly, to multiples of 8, and the padded image is periodic.
    Returns (n, height' / 4, width' / 4, 81 channels) float32; of each record 27 groups of paths
    have mean 0 and variance 1 (0 where a group is constant).
    """
    import jax
    import jax.numpy as jnp

    count, height, width, channels = images.shape
    rest = [_padded(side) - side for side in (height, width)]
    ends = [(0, 0), *((one // 2, one - one // 2) for one in rest), (0, 0)]
    planes = jnp.moveaxis(jnp.pad(images, ends), -1, 1)
    found = paths(planes.reshape(-1, *planes.shape[2:]))
    sides = found.shape[2:]
    groups = found.reshape(count, GROUPS, -1)
    groups = groups - groups.mean(axis=-1, keepdims=True)
    groups = groups * jax.lax.rsqrt(groups.var(axis=-1, keepdims=True) + _SMALLEST_VARIANCE)
    return jnp.moveaxis(groups.reshape(count, -1, *sides), 1, -1)


def upright(images: jax.Array) -> jax.Array:
    """Returns images (n, height, width, channels), each sheared along its rows; traceable.

    Row y of an image is moved by slant * (y - centre), with linear interpolation: afterwards places
    of ink, weighted by it, are not correlated along rows and columns. What leaves the image is cut
    off; an image of one row of ink, or of none, stays as it is.
    """
    import jax.numpy as jnp

    height, width = images.shape[1:3]
    rows, columns = jnp.arange(height), jnp.arange(width)
    ink = images.sum(axis=-1)
    ink = ink / jnp.maximum(ink.sum(axis=(1, 2), keepdims=True), 1e-6)
    down = rows[None] - jnp.einsum("nyx,y->n", ink, rows)[:, None]
    across = columns[None] - jnp.einsum("nyx,x->n", ink, columns)[:, None]
    spread = jnp.einsum("nyx,ny->n", ink, down**2)
    slant = jnp.einsum("nyx,ny,nx->n", ink, down, across) / jnp.maximum(spread, 1e-6)
    moved = columns[None, None] + (slant[:, None] * down)[:, :, None]
    weights = jnp.maximum(0, 1 - jnp.abs(moved[..., None] - columns[None, None, None]))
    return jnp.einsum("nyxz,nyzc->nyxc", weights, images)


def apply(inputs: np.ndarray, sheared: bool = False, at_once: int = 500) -> np.ndarray:
    """`scattering` of all records, some at once: 70,000 MNIST images take 40 s of one core."""
    import jax

    some = jax.jit(lambda images: scattering(upright(images) if sheared else images))
    features = np.empty((len(inputs), *shape(inputs.shape[1:])), np.float32)
    for start in range(0, len(inputs), at_once):
        chunk = inputs[start : start + at_once]
        # Filled up, so that no other number of records is compiled for.
        filled = np.zeros((at_once, *inputs.shape[1:]), np.float32)
        filled[: len(chunk)] = chunk
        features[start : start + len(chunk)] = np.asarray(some(filled))[: len(chunk)]
    return features


def _register(name: str, letters: bool) -> None:
    """Registers a data set of images once more, with features for inputs."""
    images = SOURCES[name]

    def plain(stored: np.ndarray) -> np.ndarray:
        return apply(images.encode(stored))

    def with_a_setting(stored: np.ndarray, upright: bool = False) -> np.ndarray:
        """Returns the features of stored images.

        Args:
          stored: as `images` reads them.
          upright: whether every image is sheared first until its ink has no slant.
        """
        return apply(images.encode(stored), upright)

    scattered = dataclasses.replace(
        images,
        name=f"{name}_scattering",
        description=f"{images.description} Inputs are 81 scattering paths a channel (two layers "
        "of Morlet wavelets, 2 scales, 8 angles), normalised in 27 groups within each record.",
        input_shape=shape(images.input_shape),
        encode=with_a_setting if letters else plain,
    )
    register(scattered)


for _name, _letters in (("mnist", True), ("cifar10_subset", False)):
    _register(_name, _letters)

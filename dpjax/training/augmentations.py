"""Augmentation multiplicity: a record's gradient is the mean over several augmentations of it.

De et al. 2022, "Unlocking high-accuracy differentially private image classification through scale"
(https://arxiv.org/abs/2204.13650), section 3.2: the mean is taken before the gradient is clipped,
once, so that a record's influence, and the price, is what it is without augmentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import checks

Tree = Any
Augment = Callable[..., Tree]
"""(key, example) -> example of the same shapes; with `augment_reads` also the hyperparameters."""
OfImage = Callable[[jax.Array, jax.Array], jax.Array]
"""(key, image (height, width, ...)) -> image of the same shape."""


def augmented(
    loss_fn: Callable[..., jax.Array],
    augment: Augment,
    multiplicity: int,
    *,
    with_rng: bool = False,
    loss_reads: bool = False,
    augment_reads: bool = False,
) -> Callable[..., jax.Array]:
    """The loss of one example: the mean over `multiplicity` independent augmentations of it.

    Formal guarantees:
      The result is a loss of ONE example and a key, as any other: `clipped_grad` clips its gradient
      once, and no guarantee changes, as long as `augment` reads nothing private but the example.

    A row holds the activations of all augmentations at once: micro-batches (`micro_batch_size`,
    "auto" by default) keep the memory of a lot down.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import training
      >>> def loss(w, x):
      ...     return (x @ w - 1.0) ** 2
      >>> jittered = training.augmented(loss, lambda key, x: x + jax.random.normal(key, x.shape), 4)
      >>> jittered(jnp.zeros(2), jnp.ones(2), jax.random.key(0)).shape
      ()

    Args:
      loss_fn: `(params, example, *rest) -> scalar`.
      augment: (key, example) -> example; such as `on_inputs(flipped, shifted(4))`.
      multiplicity: at least 1, public.
      with_rng: whether the loss takes a key of its own: every augmentation gets another.
      loss_reads: whether the loss takes hyperparameters as its last argument
        (`TrainConfig.loss_reads`).
      augment_reads: whether `augment` does.

    Returns:
      `(params, example, rng) -> scalar`, with hyperparameters behind them where either reads them:
      for `TrainConfig(with_rng=True)` and `Task(with_rng=True)`. What is scored is not augmented.
    """
    checks.function("loss_fn", loss_fn, "of parameters and one example")
    checks.function("augment", augment, "of a key and one example")
    multiplicity = checks.whole("multiplicity", multiplicity)
    for name, value in (("with_rng", with_rng), ("loss_reads", loss_reads)):
        checks.flag(name, value)
    checks.flag("augment_reads", augment_reads)

    def loss(params: Tree, example: Tree, rng: jax.Array | None = None, *given: Any) -> jax.Array:
        if not isinstance(rng, jax.Array):
            raise ValueError(
                "an augmented loss draws, and was given no key: pass with_rng=True beside it, to "
                "TrainConfig or Task"
            )

        def one(key: jax.Array) -> jax.Array:
            own, of_loss = jax.random.split(key) if with_rng else (key, key)
            changed = augment(own, example, *(given if augment_reads else ()))
            rest = ((of_loss,) if with_rng else ()) + (given if loss_reads else ())
            return loss_fn(params, changed, *rest)

        return jnp.mean(jax.vmap(one)(jax.random.split(rng, multiplicity)))

    return loss


def on_inputs(*transforms: OfImage) -> Augment:
    """An augmentation of pairs (inputs, label): transforms of the inputs one after the other.

    Args:
      *transforms: (key, inputs) -> inputs; each gets a key of its own.
    """
    for transform in transforms:
        checks.function("each of the transforms", transform, "of a key and inputs")

    def augment(key: jax.Array, example: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        inputs, label = example
        for number, transform in enumerate(transforms):
            inputs = transform(jax.random.fold_in(key, number), inputs)
        return inputs, label

    return augment


def flipped(key: jax.Array, image: jax.Array) -> jax.Array:
    """The image (height, width, ...), left and right exchanged half of the time."""
    _check_image("flipped", image)
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def shifted(pixels: int) -> OfImage:
    """A transform that moves an image by up to so many pixels either way, each alike probable.

    What comes in at the border is the image reflected (its last row is not repeated): a random crop
    of the padded image.

    Args:
      pixels: at least 1, less than height and width.
    """
    pixels = checks.whole("pixels", pixels)

    def shift(key: jax.Array, image: jax.Array) -> jax.Array:
        _check_image(f"shifted({pixels})", image)
        if min(image.shape[:2]) <= pixels:
            raise ValueError(
                f"pixels={pixels} of images {image.shape}: pass less than their height and width"
            )
        padding = [(pixels, pixels)] * 2 + [(0, 0)] * (image.ndim - 2)
        padded = jnp.pad(image, padding, mode="reflect")
        offset = jax.random.randint(key, (2,), 0, 2 * pixels + 1)
        start = [offset[0], offset[1], *(0,) * (image.ndim - 2)]
        return jax.lax.dynamic_slice(padded, start, image.shape)

    return shift


def _check_image(name: str, image: Any) -> None:
    """Refuses what a transform of images was given in the place of one."""
    shape = getattr(image, "shape", None)
    if shape is None or len(shape) < 2:
        found = f"a {type(image).__name__}" if shape is None else f"an array of shape {shape}"
        raise ValueError(
            f"{name} is of one image (height, width, ...), and was given {found}: pass "
            f"augmentations.on_inputs({name}) for pairs of image and label"
        )

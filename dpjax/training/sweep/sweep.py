"""Many private runs at once: vectorised over candidates, in chunks of one fixed shape."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from dpjax.randomness import keys as key_streams
from dpjax.training.sweep.lanes import BucketLoop, Harvest, LaneInputs, Lanes, key_of
from dpjax.training.sweep.placement import Placement, named_placement
from dpjax.training.sweep.schedule import Bucket, equal_bucket

Tree = Any
Run = Callable[[jax.Array, dict[str, jax.Array], Tree], Tree]
"""run(key, hyperparameters, data) -> pytree: one candidate, pure."""


def sweep(
    run: Run,
    keys: jax.Array,
    hyperparameters: Mapping[str, Any],
    data: Tree,
    *,
    chunk_size: int = 32,
    placement: str | Placement = "rule",
    bytes_of_step: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[np.ndarray, Tree]]:
    """Trains all candidates, chunk by chunk, with one compilation.

    Candidates that differ in lot size or number of steps are for `mixed_sweep`.

    Formal guarantees:
      * Candidates are independent: each uses its own key, and a key given twice is refused, since
        equal keys would add identical noise. Lanes that only fill up the last chunk get fresh keys
        of their own and their results are dropped.
      * A candidate's result depends on its key, its hyperparameters and the data alone, not on its
        position, the chunk size or the other candidates (up to float32 rounding, which may depend
        on the width of the vectorisation).
      * How many candidates there are shows in the number of chunks and their timing: both are the
        curator's to keep.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from dpjax import training
      >>> config = training.TrainConfig(
      ...     loss_fn=lambda w, x: (x @ w - 1.0) ** 2,
      ...     lots=training.PoissonLots(100, 0.1, 40),
      ...     steps=5,
      ...     expected_lot_size=10,
      ...     optimizer=training.sgd(),
      ... )
      >>> train = training.make_train(config)
      >>> def run(key, given, rows):
      ...     return train(key, given, jnp.zeros(2), rows)
      >>> given = {
      ...     "clip_norm": np.ones(3),
      ...     "noise_multiplier": np.ones(3),
      ...     "learning_rate": np.array([0.1, 0.3, 1.0]),
      ... }
      >>> keys = training.candidate_keys(3)
      >>> for places, params in training.sweep(run, keys, given, np.ones((100, 2), np.float32)):
      ...     print(places, params.shape)
      [0 1 2] (3, 2)

    Args:
      run: one candidate, `run(key, hyperparameters, data) -> pytree of arrays`. Give the same
        function object again to reuse its compilation.
      keys: typed key array (candidates,), from `candidate_keys`.
      hyperparameters: name -> array (candidates,).
      data: pytree of arrays, copied to the device once and shared by all candidates.
      chunk_size: THE memory knob: at most this many candidates live on one device at a time, each
        with parameters, optimiser state, a lot and its activations. The candidates are spread
        evenly over as few chunks as that allows.
      placement: "rule", "vmap", "one_by_one", "devices", "devices_one_by_one"
        (`named_placement`), or a `Placement`. Where the candidates do not divide by the devices,
        the last lanes are filled up, with a warning.
      bytes_of_step: of one candidate's step, `training.bytes_of_step`: what "rule" goes by. Without
        it "rule" is "vmap".
      progress: called with (candidates done, candidates in all) after every chunk.

    Yields:
      indices int64 (k,) of the finished candidates and their outputs, a pytree of host arrays
      (k, ...). What is refused is refused by the call itself, not by the first chunk.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}: pass at least 1")
    values = checked_candidates(keys, hyperparameters)
    if isinstance(placement, str):
        placement = named_placement(placement, chunk_size, bytes_of_step)
    number, devices = keys.shape[0], placement.device_count
    if number % devices:
        warnings.warn(
            f"{number} candidates do not divide by {devices} devices: the last lanes are padding",
            stacklevel=2,
        )
    key_words = np.asarray(jax.random.key_data(keys))

    def inputs_of(member: int) -> LaneInputs:
        own = {name: value[member] for name, value in values.items()}
        return {"key": key_words[member], "hyperparameters": own}

    buckets = equal_bucket(number, slots=placement.lanes, slots_multiple=devices)
    loop = BucketLoop(buckets, lambda bucket: _WholeRuns(bucket, placement, inputs_of, run, data))
    return loop.results(None, progress, None)


def checked_candidates(
    keys: jax.Array, hyperparameters: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The hyperparameters as float32 (candidates,), after refusing what no sweep may be given."""
    if not jax.dtypes.issubdtype(getattr(keys, "dtype", None), jax.dtypes.prng_key):
        raise ValueError("keys are not typed keys: pass training.candidate_keys(number)")
    if str(jax.random.key_impl(keys)) != key_streams.IMPLEMENTATION:
        raise ValueError(
            f"keys are of kind {jax.random.key_impl(keys)}: pass {key_streams.IMPLEMENTATION} "
            "keys, as training.candidate_keys makes them; others may repeat bits when vectorised"
        )
    if keys.ndim != 1:
        raise ValueError(f"keys have shape {keys.shape}: pass one key per candidate, (candidates,)")
    number = keys.shape[0]
    _refuse_shared_keys(keys)
    values = {name: np.asarray(value, np.float32) for name, value in hyperparameters.items()}
    for name, value in values.items():
        if value.shape != (number,):
            raise ValueError(
                f"hyperparameter {name} has shape {value.shape}: pass one number per candidate, "
                f"({number},)"
            )
    return values


def _refuse_shared_keys(keys: jax.Array) -> None:
    """Raises a ValueError if two of the keys (candidates,) are equal."""
    if len(np.unique(np.asarray(jax.random.key_data(keys)), axis=0)) < keys.shape[0]:
        raise ValueError(
            "two candidates share a key and would get identical noise: pass a different key for "
            "each, from training.candidate_keys(number)"
        )


class _WholeRuns(Lanes):
    """Lanes in which one call trains every candidate from beginning to end."""

    def __init__(
        self,
        bucket: Bucket,
        placement: Placement,
        inputs_of: Callable[[int], LaneInputs],
        run: Run,
        data: Tree,
    ):
        super().__init__(bucket, placement, inputs_of)
        self._placed = _placed(run, self.placement)
        self._data = self.placement.put(data, whole=True)

    def advance(self, most: int) -> Harvest:
        members = self.member[self.member >= 0]  # the first lanes: those without are the last
        outputs = jax.device_get(self._placed(self.inputs, self._data))
        self.member[:] = -1
        return members, jax.tree.map(lambda leaf: leaf[: len(members)], outputs)


@functools.lru_cache(maxsize=8)
def _placed(run: Run, placement: Placement) -> Callable[..., Tree]:
    """The jitted run over a chunk; kept for the last few runs, so that a repeated sweep (a doubling
    loop) does not compile again."""

    def of_inputs(inputs: LaneInputs, data: Tree) -> Tree:
        return run(key_of(inputs), inputs["hyperparameters"], data)

    return jax.jit(placement.mapped(of_inputs, (0, None)))

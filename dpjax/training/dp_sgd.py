"""DP-SGD as one pure function (Abadi et al. 2016, https://arxiv.org/abs/1607.00133).

`make_train(static)` -> `train(key, hyperparameters, params, data)`: what shapes the computation is
fixed in `TrainConfig`; what a candidate may vary is a dictionary of traced numbers. `jax.jit` and
`jax.vmap` belong to the caller (`sweep/`). The run itself is `begin` and then `advance`, the only
loop of noisy steps; callers that trace the number of steps or the lots (the slots of a
mixed sweep, the repetitions of a Pareto search) call these two.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import checks
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE, normalise_relation
from dpjax.randomness import keys, threefry
from dpjax.randomness.noise import LEAST_STD, add_gaussian_noise
from dpjax.training import averages as averaging
from dpjax.training import micro_batches, optimizers
from dpjax.training import stages as staged
from dpjax.training.balls_in_bins import BallsInBinsLots
from dpjax.training.clipping.clip_rules import ClipRule, GlobalClipping, checked_rule
from dpjax.training.clipping.clipped_grad import LARGEST_SCALED, ClippedGrad, clipped_grad
from dpjax.training.clipping.implicit_convolution import as_for
from dpjax.training.clipping.single_evaluation import formed_once
from dpjax.training.contribution_check import Checked, sum_of_checked
from dpjax.training.correlated_noise import BandedNoise, Coefficients, add_correlated_noise
from dpjax.training.gradient_scales import scale_of, scaled_gradient
from dpjax.training.lots import (
    CyclicPoissonLots,
    FixedLots,
    Lots,
    PoissonLots,
    family_of,
    lots_ahead,
    lots_of_run,
    lots_of_steps,
)
from dpjax.training.mesh import LotMesh
from dpjax.training.micro_batches import AUTO, Lot, MicroBatchSize

Tree = Any
Trainable = None | Tree | Callable[[tuple[str, ...], jax.Array], bool]

_READ = ("clip_norm", "noise_multiplier")
_RELATION_OF_LOTS = {
    PoissonLots: ADD_OR_REMOVE_ONE,
    CyclicPoissonLots: ADD_OR_REMOVE_ONE,
    BallsInBinsLots: ADD_OR_REMOVE_ONE,
    FixedLots: REPLACE_ONE,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Holds everything static about a training run.

    Attributes:
      loss_fn: loss of ONE example, `loss_fn(params, example) -> scalar`, or
        `loss_fn(params, example, rng)` with `with_rng`; see `loss_reads` too. `example` is `data`
        without its leading axis.
      lots: how lots are drawn; `PoissonLots`, `CyclicPoissonLots`, `BallsInBinsLots`,
        `FixedLots`.
      steps: number of steps, public.
      expected_lot_size: public number that the noisy sum is divided by. Never the realised lot.
      relation: neighbouring relation of the guarantee, or None for the one that fits `lots`.
      optimizer: hyperparameters -> optax transformation; see `optimizers.py`.
      trainable: which leaves of `params` are trained: None for all, a pytree of bool like `params`,
        or a function of (path as a tuple of strings, leaf). The others are neither differentiated
        nor noised: they come back bit for bit, and cost nothing in the clip norm.
      with_rng: whether the loss takes a key of its own (dropout), a fresh one per step and example.
      micro_batch_size: rows of which gradients are taken at once, the knob for memory and time: a
        number, None for the whole lot, or "auto", by a rule from public numbers
        (`micro_batches.rows_by_rule`). It changes the last bits of a result and no guarantee.
      mesh: devices over which every lot of the one run is spread, see `mesh.py`; None for one
        device. It changes the last bits of a result and no guarantee.
      clipping: how gradients are clipped: a rule of `clip_rules.py`, or its name where it needs no
        settings. None changes what a run costs.
      average: of the iterates; the run returns it, at no cost in privacy, instead of the last
        iterate; None: the last iterate.
      loss_reads: names of hyperparameters that the loss is given, a mapping of these alone from
        name to scalar, as its last argument: dropout, weight decay, strength of an augmentation.
      check_contributions: how many rows of every lot, at random, have their contribution measured:
        what each adds to the compiled sum, alone, which costs about a micro-batch. Runs then return
        a `Checked`, for `refuse_long` to judge. 0: none.
      noise: how the noise of steps is correlated; more than one band needs lots whose cost is
        proven with it, `CyclicPoissonLots`. None: independent noise.
      stages: of the run, with factors on noise multiplier, clip norm and lot size; `lots` are those
        of factor 1, of a capacity for the largest. None: every step is alike.
    """

    loss_fn: Callable[..., jax.Array]
    lots: Lots
    steps: int
    expected_lot_size: float
    optimizer: optimizers.Optimizer
    relation: str | None = None
    trainable: Trainable = None
    with_rng: bool = False
    micro_batch_size: MicroBatchSize = AUTO
    mesh: LotMesh | None = None
    clipping: ClipRule = GlobalClipping()
    average: averaging.Average | None = None
    loss_reads: tuple[str, ...] = ()
    check_contributions: int = 0
    noise: BandedNoise | None = None
    stages: staged.Stages | None = None

    def __post_init__(self) -> None:
        if type(self.lots) not in _RELATION_OF_LOTS:
            raise ValueError(f"lots is {self.lots!r}: pass training.PoissonLots or FixedLots")
        fitting = _RELATION_OF_LOTS[type(self.lots)]
        relation = fitting if self.relation is None else normalise_relation(self.relation)
        if relation != fitting:
            raise ValueError(
                f"{type(self.lots).__name__} has no accounting under {relation!r}: pass "
                f"relation={fitting!r}, or the other kind of lots"
            )
        object.__setattr__(self, "relation", relation)
        if not isinstance(self.steps, int | np.integer) or self.steps < 1:
            raise checks.Refused(("steps", self.steps), ": pass an integer of at least 1")
        if not 0 < self.expected_lot_size < math.inf:
            raise ValueError(
                f"expected_lot_size is {self.expected_lot_size}: pass the public lot size, "
                "sampling probability times public data set size"
            )
        size = micro_batches.checked("micro_batch_size", self.micro_batch_size)
        object.__setattr__(self, "micro_batch_size", size)
        if not isinstance(self.mesh, LotMesh | None):
            raise ValueError(f"mesh is {self.mesh!r}: pass a training.LotMesh, or None")
        object.__setattr__(self, "clipping", checked_rule("clipping", self.clipping))
        object.__setattr__(self, "average", averaging.checked(self.average))
        object.__setattr__(self, "loss_reads", optimizers.names("loss_reads", self.loss_reads))
        rows = checks.whole("check_contributions", self.check_contributions, 0)
        if rows and self.mesh is not None:
            raise ValueError(
                "check_contributions measures records that lie on one device: pass 0, or "
                "mesh=None to make_train"
            )
        if self.noise is not None:
            checks.instance("noise", self.noise, BandedNoise, "training.BandedNoise(8), or None")
            self.noise.check_lots(self.lots)
            if self.bands > 1 and self.mesh is not None:
                raise ValueError(
                    "correlated noise lies on one device: pass noise=None or mesh=None"
                )
        if self.stages is not None:
            example = "training.Stages((0.75, 0.25), noise=(1.1, 0.8)), or None"
            checks.instance("stages", self.stages, staged.Stages, example)
            self.stages.of_run(self.steps, self.lots)  # Its refusals.
            if self.mesh is not None:
                raise ValueError("stages are of runs on one device: pass stages=None or mesh=None")

    @property
    def bands(self) -> int:
        """Returns over how many steps in a row noise is correlated; 1: it is not."""
        return 1 if self.noise is None else self.noise.bands


Train = Callable[..., Tree]
"""train(key, hyperparameters, params, data, number_of_records=None, first_record=0) -> params."""


def make_train(config: TrainConfig) -> Train:
    """Builds the function of one whole private training run.

    The result, `train(key, hyperparameters, params, data, number_of_records=None, first_record=0)`,
    takes:
      key: typed key, shape (); all randomness of the run comes from its named streams.
      hyperparameters: dict of scalars, traced: `clip_norm`, `noise_multiplier` and what the
        optimiser reads. Taken as float32. Where one of the first two is negative or no number,
        nothing but NaN comes out; clip norms below some 1e-10 count as zero (`clipped_grad`).
      params: pytree, the full initial parameters (public, or the output of something accounted
        for).
      data: pytree of arrays (rows, ...), the private records. No other row than the
        `number_of_records` from `first_record` on has an influence. The number of rows shapes the
        program, so it must be public: at least `dataset_size_bound` (`training.padded`).
      number_of_records: None for all rows from the first on. Pass a private one as an argument of
        the jitted function: a number that is a constant of the program is part of it. With
        `FixedLots` that of the lots: another one is refused, and gives nothing but NaN where it is
        traced.
      first_record: static or traced; the records are the rows from this one on, so that runs on
        different partitions of one array share a compilation. One that is no row, or (`FixedLots`)
        leaves too few behind it, is refused, and gives nothing but NaN where it is traced.
    and returns the final full parameters, a pytree like `params`, or their `config.average`. It is
    pure: it may be jitted, and vmapped over the first three arguments.

    Formal guarantees:
      Let C = clip_norm and S = `grad_fn.sensitivity(relation, C)` (C for add or remove one, 2C for
      replace one). Every step t draws a lot, computes the sum over the lot of per-example gradients
      clipped to L2 norm C over all trainable leaves together, and adds N(0, (noise_multiplier S)^2)
      to every entry. (Other rules of `clipping` bound contributions by C, too. Scaled
      gradients, `gradient_scales`, are clipped as scaled, by a scale of earlier noisy sums.) The
      sequence of noisy sums is therefore the adaptive composition of `steps` subsampled Gaussian
      mechanisms of noise multiplier `noise_multiplier`, each on its own lot (with `config.noise`:
      see `BandedNoise`; with `config.stages`: `Stages`), and all that `train`
      computes after a noisy sum (division by the public `expected_lot_size`, the optimiser, later
      steps' parameters, the result) is post-processing of these sums. In
      particular:
        * lots, noise and loss randomness of all steps come from different streams of `key`, and
          each step folds its number in, so no two draws share a key;
        * an empty lot still gets noise; the number of records only limits which rows a lot may
          hold;
        * frozen leaves are returned unchanged;
        * a lot's sum may be taken in micro-batches (`micro_batches.sum_of_lot`), as many as the lot
          needs, and on several devices (`mesh.LotMesh`): noise is added once, to their total. How
          long a step takes then follows the lot.
      In floating point: a record's place depends on no other record (`places`), so that one record
      changes no other one's contribution, and what rounding adds to its influence on the sum is
      inside the clip norm, proven for every order of summation (`clipped_grad`,
      `micro_batches.sum_of_lot`). Both need one program for data sets that differ in one record:
      no shape and no constant of it depends on their number. Whatever the type of the parameters
      (float64 under `jax_enable_x64` included), the noisy sum is rounded to a grid of at most 2^-19
      of the noise's standard deviation, which shows no last bit of sum or noise
      (`add_gaussian_noise`).
      The guarantee fails where the loss of an example depends on anything private but that example,
      where `params` or hyperparameters were computed from the records, or where keys are reused.
      `noise_multiplier` 0 and infinite `clip_norm` are allowed, for tests: the run is then plain
      SGD with no guarantee at all, and the accounting refuses it.

    Example:
      >>> import jax
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
      >>> train = training.jit(training.make_train(config))
      >>> given = {"clip_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1}
      >>> (key,) = training.candidate_keys(1, seed=0)
      >>> train(key, given, jnp.zeros(2), np.ones((100, 2), np.float32)).shape
      (2,)
    """

    def train(
        key: jax.Array,
        hyperparameters: Mapping[str, Any],
        params: Tree,
        data: Tree,
        number_of_records: int | jax.Array | None = None,
        first_record: int | jax.Array = 0,
    ) -> Tree:
        hyperparameters = {
            name: jnp.asarray(value, jnp.float32) for name, value in hyperparameters.items()
        }
        own = _rows_are_own(config.lots, data, number_of_records, first_record)
        if own is not None:
            # Traced numbers cannot be refused by an exception: NaN makes the whole run worthless.
            hyperparameters = {
                name: jnp.where(own, value, jnp.nan) for name, value in hyperparameters.items()
            }
        number_of_records = checked_number_of_records(
            config.lots, data, number_of_records, first_record
        )
        data = jax.tree.map(jnp.asarray, data)
        if config.steps == 1:
            # A compiler removes a loop of one step: then nothing is kept in memory by it.
            params, data = formed_once((params, data))

        of_step = _lots_of_run(config, key, number_of_records)

        def draw(lot_key: jax.Array, number: jax.Array) -> Lot:
            indices, mask = of_step(lot_key, number)
            return first_record + indices, mask

        state = advance(
            config,
            key,
            hyperparameters,
            begin(config, hyperparameters, params),
            data,
            draw=draw,
            expected_lot_size=config.expected_lot_size,
            steps=np.uint32(config.steps),
        )
        found = returned(config, state)
        return found if config.mesh is None else config.mesh.gathered(found)

    return train


class RunState(NamedTuple):
    """Holds the state of a run between two steps; a pytree."""

    frozen: Tree  # leaves of the parameters that are not trained, None for the others
    optimizer: Tree
    trained: Tree  # the other half of `partition(params, trainable)`
    average: Tree = ()  # of what is trained, if one is kept
    longest: Tree = ()  # contribution that was measured, in clip norms, if any was
    owed: Tree = ()  # what noises take off those of later steps (`correlated_noise`), in cells

    @property
    def params(self) -> Tree:
        """Returns the full parameters."""
        return merge(self.trained, self.frozen)


def begin(
    config: TrainConfig,
    hyperparameters: Mapping[str, jax.Array],
    params: Tree,
    bands: int | None = None,
) -> RunState:
    """Returns the state before the first step; takes what `make_train`'s function takes.

    The state has room for noise correlated over `bands` steps (None: as many as the config says).
    """
    trained, frozen = partition(params, config.trainable)
    if config.mesh is not None:
        config.mesh.check_layout(trained)
        frozen = config.mesh.gathered(frozen)
    # Checked first: what every run needs, before what this optimiser needs.
    optimizers.read(hyperparameters, "DP-SGD", *_READ)
    for name in _READ:
        shape = jnp.shape(hyperparameters[name])
        if shape != ():
            raise ValueError(
                f"{name} has shape {shape}: pass one number, or map the run over several by "
                "jax.vmap or training.sweep"
            )
    optimizers.read(hyperparameters, "the loss", *config.loss_reads)
    optimizer = config.optimizer(hyperparameters).init(trained)
    average = () if config.average is None else averaging.begin(trained)
    longest = jnp.float32(0.0) if config.check_contributions else ()
    carried = optimizer, trained, average
    if config.mesh is not None:
        carried = config.mesh.between_steps(carried)
    bands = config.bands if bands is None else bands
    entries = sum(leaf.size for leaf in jax.tree.leaves(trained))
    owed = jnp.zeros((bands - 1, entries), jnp.float32) if bands > 1 else ()
    return RunState(frozen, *carried, longest, owed)


def returned(config: TrainConfig, state: RunState) -> Tree:
    """Returns the result of a run that ends here: its full parameters, or their average."""
    if config.check_contributions:
        unchecked = dataclasses.replace(config, check_contributions=0)
        return Checked(returned(unchecked, state), state.longest)
    if config.average is None:
        return state.params
    return merge(averaging.result(state.average, state.trained), state.frozen)


def advance(
    config: TrainConfig,
    key: jax.Array,
    hyperparameters: Mapping[str, jax.Array],
    state: RunState,
    data: Tree,
    *,
    draw: Callable[[jax.Array, jax.Array], Lot],
    expected_lot_size: float | jax.Array,
    steps: np.uint32 | jax.Array,
    first: int | jax.Array = 0,
    total_steps: int | jax.Array | None = None,
    correlation: Coefficients | None = None,
    stages: staged.Numbers | None = None,
) -> RunState:
    """Takes `steps` more noisy steps of one run, each on a lot that `draw` draws by key and number.

    Formal guarantees:
      Those of `make_train`, where `draw` draws the lots that the run is accounted for with and no
      step number is given to one key twice.

    The config's expected lot size is not read, and of its lots only how many rows most of them
    have. Numbers of steps may be traced (uint32): `first` is the number of the first of these
    steps, `total_steps` the length of the whole run, which an average reads; None: `config.steps`.
    `correlation` are the coefficients of the run's noise, `stages` the numbers of its stages, each
    traced or not; None: of the config's. `expected_lot_size` is that of a stage of factor 1.
    """
    clip_norm, noise_multiplier = optimizers.read(hyperparameters, "DP-SGD", *_READ)
    grad_fn = grad_fn_of(config, hyperparameters, state.frozen)  # A scale changes no sensitivity.

    def std_of(factor: float | jax.Array, clip_norm: jax.Array) -> jax.Array:
        """Returns the std of the noise of a step with these numbers."""
        sensitivity = grad_fn.sensitivity(config.relation, clip_norm)
        # A multiplier of 0 means no noise, at an infinite clip norm too (0 * inf is NaN); any other
        # means some noise, even if the product underflows.
        std = jnp.maximum(noise_multiplier * factor * sensitivity, LEAST_STD)
        std = jnp.where(noise_multiplier == 0.0, 0.0, std)
        # A negative product would become the least std, hardly any noise: NaN instead.
        sound = (noise_multiplier >= 0.0) & (clip_norm >= 0.0)
        if config.clipping.scales_up:
            sound &= clip_norm <= LARGEST_SCALED
        return jnp.where(sound, std, jnp.nan)

    alike = std_of(1.0, clip_norm), clip_norm, expected_lot_size
    mesh = config.mesh
    if correlation is None and config.noise is not None and config.bands > 1:
        correlation = config.noise.coefficients(config.steps)
    if stages is None and config.stages is not None:
        stages = config.stages.numbers(config.steps, config.lots)

    def of_step(number: jax.Array) -> tuple[jax.Array, jax.Array, float | jax.Array]:
        """Returns the std of the noise of its own, clip norm and expected lot size of a step."""
        if stages is None:
            return alike
        noise, clipping, lot_size = staged.at(stages, number, *staged.FACTORS)
        own = clip_norm * clipping
        return std_of(noise, own), own, expected_lot_size * lot_size

    noise_key = keys.stream(key, "noise")
    lot_of = lots_of_run(key, draw)
    places = jax.eval_shape(lot_of, np.uint32(0))[1].shape[0]
    summed = _sums_of_lots(config, key, hyperparameters, state, data, places)
    optimizer = config.optimizer(hyperparameters)
    total_steps = config.steps if total_steps is None else total_steps
    carried = (state.trained, state.optimizer, state.average, state.longest, state.owed)

    def step(lot_of: Any, offset: jax.Array, carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
        trained, optimizer_state, average, longest, owed = carry
        number = first + offset
        noise_std, clip_norm, lot_size = of_step(number)
        scale = scale_of(optimizer_state)
        clipped_sum, lost, share = summed(lot_of, number, trained, clip_norm, scale)
        if config.check_contributions:
            longest = jnp.maximum(longest, share)
        own_key = threefry.fold_in(noise_key, number)
        if correlation is None:
            draw = None if mesh is None else mesh.dithered_normal
            noisy_sum = add_gaussian_noise(own_key, clipped_sum, noise_std, lost, draw=draw)
        else:
            noisy_sum, owed = add_correlated_noise(
                own_key, clipped_sum, noise_std, lost, correlation, owed
            )
        gradient = jax.tree.map(lambda leaf: leaf / jnp.asarray(lot_size, leaf.dtype), noisy_sum)
        # Optimisers may read the noise's std in all: it is public.
        std_in_all = noise_std if correlation is None else noise_std * correlation["spread"]
        gradient_noise = std_in_all / lot_size
        updates, optimizer_state = optimizers.updated(
            optimizer, gradient, optimizer_state, trained, gradient_noise
        )
        trained = optax.apply_updates(trained, updates)
        if config.average is not None:
            average = averaging.after_step(config.average, average, trained, number, total_steps)
        carry = trained, optimizer_state, average, longest, owed
        return carry if mesh is None else mesh.between_steps(carry)

    # Every run counts from 0: lower bounds that differ between vectorised runs would cost a
    # selection of the whole state at every step.
    ahead = np.uint32(1) if mesh is not None else lots_ahead(config.lots, steps, places)

    def stretch(turn: jax.Array, carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Takes the next `ahead` steps, or as many as are left; draws their lots at once."""
        begun = turn * ahead
        lots = jax.vmap(lot_of)(first + begun + jnp.arange(ahead, dtype=jnp.uint32))

        def one(place: jax.Array, carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
            return step(lambda number: (lots[0][place], lots[1][place]), begun + place, carry)

        # If the number of steps is known, `ahead` divides it.
        known = isinstance(steps, np.integer)
        left = ahead if known else jnp.minimum(ahead, jnp.maximum(steps, begun) - begun)
        return jax.lax.fori_loop(np.uint32(0), left, one, carry)

    body: Callable[..., tuple[Tree, ...]] = functools.partial(step, lot_of)
    turns = steps
    if ahead > 1:
        body, turns = stretch, (steps + (ahead - np.uint32(1))) // ahead
    trained, optimizer_state, *rest = jax.lax.fori_loop(np.uint32(0), turns, body, carried)
    return RunState(state.frozen, optimizer_state, trained, *rest)


def rows_of_micro_batch(
    config: TrainConfig,
    hyperparameters: Mapping[str, jax.Array],
    state: RunState,
    data: Tree,
    capacity: int,
    side_by_side: int | None = None,
) -> int:
    """Returns how many rows of a lot `advance` takes gradients of at once; `data` may be shapes.

    `side_by_side` candidates are on one device; None: as many as the run is traced with.
    """
    closed = hyperparameters, state.frozen, scale_of(state.optimizer)
    grad_fn, setting = grad_fn_of(config, *closed), config.micro_batch_size
    if config.mesh is not None:
        capacity = config.mesh.share_of(capacity)
    trained = state.trained
    return micro_batches.rows_at_once(setting, grad_fn, trained, data, capacity, side_by_side)


def bytes_of_step(config: TrainConfig, params: Tree, data: Tree, side_by_side: int = 1) -> int:
    """Estimates the memory that one step of a run touches, from shapes alone.

    It counts the rows of one micro-batch, by `ClippedGrad.bytes_a_row`, and what is shaped like the
    parameters: sums, noise, the optimiser's state. It counts as if nothing were fused or freed:
    sweeps of 64 or 256 runs, compiled for an H100, take 0.04 to 0.65 of it.

    Args:
      config: its loss, lots, `trainable` and `micro_batch_size` are read.
      params, data: as in `make_train`, or their shapes.
      side_by_side: how many runs share what "auto" may take of an accelerator.
    """
    found = []

    def look(params: Tree, data: Tree) -> None:
        trained, frozen = partition(params, config.trainable)
        state = RunState(frozen, None, trained)
        given = dict.fromkeys(config.loss_reads, jnp.float32(1.0))
        places = config.lots.places
        rows = rows_of_micro_batch(config, given, state, data, places, side_by_side)
        of_params = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trained))
        own = grad_fn_of(config, given, frozen).bytes_a_row(trained, data)
        passes = _PASSES + 2 * (config.bands - 1)
        found.append(rows * own + passes * of_params)

    # Traced, not given shapes: the loss closes over the frozen parameters, which must be arrays.
    jax.eval_shape(look, params, data)
    return found[0]


_PASSES = 16
"""Times that a step reads or writes arrays like the parameters, roughly; see `micro_batches`."""


def _sums_of_lots(
    config: TrainConfig,
    key: jax.Array,
    hyperparameters: Mapping[str, jax.Array],
    state: RunState,
    data: Tree,
    places: int,
) -> Callable[..., tuple[Tree, Tree | None, Tree]]:
    """Returns a function (number -> lot, number, parameters, clip norm, scale) of a step.

    It returns the clipped sum of the step's lot and what it lacks of the unrounded total, as
    `micro_batches.sum_of_lot` does, and the longest of the contributions that are checked.
    """
    loss_key, check_key = (keys.stream(key, name) for name in ("loss", "check"))
    rows_at_once = rows_of_micro_batch(config, hyperparameters, state, data, places)

    def of_closed(closed: Tree) -> ClippedGrad:
        return grad_fn_of(config, *closed)

    def summed(
        lot_of: Any, number: jax.Array, trained: Tree, clip_norm: jax.Array, scale: Tree | None
    ) -> tuple[Tree, Tree | None, Tree]:
        """Draws the lot of a step and sums its clipped gradients; measures some if configured."""
        closed = hyperparameters, state.frozen, scale
        grad_fn = of_closed(closed)
        sum_of_lot = functools.partial(micro_batches.sum_of_lot, grad_fn)
        if config.mesh is not None:
            sum_of_lot = functools.partial(config.mesh.sum_of_lot, of_closed, closed)
        indices, drawn = lot_of(number)
        rng = threefry.fold_in(loss_key, number) if config.with_rng else None

        def sum_of(mask: jax.Array) -> tuple[Tree, Tree | None]:
            lot = indices, mask
            return sum_of_lot(trained, data, lot, clip_norm, rng, rows_at_once)

        if not config.check_contributions:
            return *sum_of(drawn), ()
        of_checked, longest = sum_of_checked(
            sum_of,
            drawn,
            threefry.fold_in(check_key, number),
            config.check_contributions,
            grad_fn.sensitivity(ADD_OR_REMOVE_ONE, clip_norm),
        )
        return *of_checked, longest

    return summed


def grad_fn_of(
    config: TrainConfig,
    hyperparameters: Mapping[str, jax.Array],
    frozen: Tree,
    scale: Tree | None = None,
) -> ClippedGrad:
    """Returns `clipped_grad` of the loss by its trained parameters, with scaled gradients."""
    read = {name: hyperparameters[name] for name in config.loss_reads}
    given = (read,) if read else ()

    def loss_of_trained(trained: Tree, example: Tree, *rng: jax.Array) -> jax.Array:
        return config.loss_fn(merge(trained, frozen), example, *rng, *given)

    loss = as_for(config.loss_fn, loss_of_trained)
    if scale is not None:
        loss = scaled_gradient(loss, scale)
    return clipped_grad(loss, with_rng=config.with_rng, clipping=config.clipping)


def _lots_of_run(
    config: TrainConfig, key: jax.Array, number_of_records: int | jax.Array
) -> Callable[[jax.Array, jax.Array], Lot]:
    """Returns `lots_of_steps` of a run whose stages may have lots of several sizes."""
    stages, lots = config.stages, config.lots
    if stages is None or set(stages.lot_size) == {1.0}:
        return lots_of_steps(lots, key, number_of_records)
    family = family_of(lots)
    numbers = stages.numbers(config.steps, lots, family)
    return staged.lots_of_steps(family, key, numbers, number_of_records)


def _rows_are_own(
    lots: Lots,
    data: Tree,
    number_of_records: int | jax.Array | None,
    first_record: int | jax.Array,
) -> jax.Array | None:
    """Returns whether, by these traced numbers, each row of a lot is a different record.

    If not, one record could be in a lot many times: fixed lots are drawn from their own number of
    rows, whatever number is given, and gathering clips indices. None if nothing is traced.
    """

    def traced(value: object) -> bool:
        return not isinstance(value, int | np.integer)

    found = []
    if isinstance(lots, FixedLots) and number_of_records is not None and traced(number_of_records):
        found.append(number_of_records == lots.dataset_size)
    if traced(first_record):
        behind = lots.dataset_size if isinstance(lots, FixedLots) else 0
        last = jnp.shape(jax.tree.leaves(data)[0])[0] - behind
        found.append((first_record >= 0) & (first_record <= last))
    return jnp.all(jnp.stack(found)) if found else None


def checked_number_of_records(
    lots: Lots,
    data: Tree,
    number_of_records: int | jax.Array | None,
    first_record: int | jax.Array = 0,
    *,
    in_shapes: bool = True,
) -> int | jax.Array:
    """Returns the number of records; refuses one that the lots or the data do not allow.

    `in_shapes`: the number of rows is in the shape of a program.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(data)]
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
        raise ValueError(
            f"data leaves of shapes {shapes} disagree on the number of rows: pass arrays (n, ...)"
        )
    row_count = shapes[0][0]
    if isinstance(first_record, int | np.integer):
        if not 0 <= first_record <= row_count:
            raise ValueError(
                f"first_record is {first_record}: pass a row from 0 to {row_count}, their number"
            )
        row_count -= int(first_record)
    else:
        row_count = jnp.clip(shapes[0][0] - first_record, 0, shapes[0][0])
    known = isinstance(row_count, int)
    if number_of_records is None:
        number_of_records = row_count
    static = isinstance(number_of_records, int | np.integer)
    if static and known and number_of_records > row_count:
        raise ValueError(
            f"number_of_records is {number_of_records} but data has {row_count} rows: pass at most "
            "that, or None"
        )
    bound = 0 if isinstance(lots, FixedLots) else lots.dataset_size_bound
    if in_shapes and shapes[0][0] < bound:
        # As many rows as there are records would show in the shape of every program.
        raise ValueError(
            f"lots of up to {bound} records, but data has {shapes[0][0]} rows: pass "
            f"training.padded(data, {bound}) and number_of_records"
        )
    if isinstance(lots, FixedLots) and known and row_count < lots.dataset_size:
        raise ValueError(
            f"fixed lots of {lots.dataset_size} records, but data has {row_count} rows: pass "
            f"FixedLots(dataset_size={row_count}, ...)"
        )
    if static and (known or not isinstance(lots, FixedLots)):
        lots.check_number(int(number_of_records))
    # Gathering clips indices, so more records than rows would read the last row more than once.
    if static and known:
        return number_of_records
    return jnp.minimum(number_of_records, row_count)


def partition(params: Tree, trainable: Trainable) -> tuple[Tree, Tree]:
    """Splits params into trees (trained, frozen), each with None for the leaves of the other."""
    if trainable is None:
        mask = jax.tree.map(lambda leaf: True, params)
    elif callable(trainable):
        mask = jax.tree_util.tree_map_with_path(
            lambda path, leaf: bool(trainable(_names(path), leaf)), params
        )
    else:
        mask = trainable
        if jax.tree.structure(mask) != jax.tree.structure(params):
            raise ValueError(
                "trainable does not have the structure of params: pass one bool per leaf, or a "
                "function of (path, leaf)"
            )
    if not any(jax.tree.leaves(mask)):
        raise ValueError("trainable selects no leaf: pass a mask with something to train")
    for (path, leaf), selected in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(mask), strict=True
    ):
        if selected and not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"the trainable leaf {'/'.join(_names(path))} has type {jnp.result_type(leaf)}: "
                "pass a trainable mask that leaves it out"
            )
    trained = jax.tree.map(lambda selected, leaf: leaf if selected else None, mask, params)
    frozen = jax.tree.map(lambda selected, leaf: None if selected else leaf, mask, params)
    return jax.tree.map(jnp.asarray, trained), frozen


def merge(trained: Tree, frozen: Tree) -> Tree:
    """Joins the two trees of a partition: takes every leaf from the tree that has it."""
    return jax.tree.map(
        lambda left, right: right if left is None else left,
        trained,
        frozen,
        is_leaf=lambda node: node is None,
    )


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns a jax key path as plain strings: ("Dense_0", "kernel")."""
    return tuple(
        str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", entry))))
        for entry in path
    )

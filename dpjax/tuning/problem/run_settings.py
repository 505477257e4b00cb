"""What one candidate's run costs, for every setting the space allows; and the noise that fits.

A candidate's privacy cost depends on its noise multiplier, lot size and number of steps. They come
from public numbers only. Where the space draws them, a run is a mixture over finitely many
settings, and so is its guarantee.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from dpjax import accounting, checks, training
from dpjax.accounting.calibration import check_worth_pricing
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.training.lots import NumberedLots
from dpjax.training.stages import ONE_STAGE, Stage
from dpjax.tuning.problem.problem import BETWEEN, FIXED, Problem, Sizes, check_bands
from dpjax.tuning.problem.space import ACCOUNTED, Space
from dpjax.tuning.problem.task import check_neighbours

TRUNCATION_PROBABILITY = 1e-9
"""Wanted probability that any lot of one run overflows its capacity; it is charged in delta."""

LARGEST_STD = 40_000.0
"""Of score noise, in units of a score: wider discrete Gaussians are not tabulated."""


def whole_lot_size(lot_size: float, records: int) -> int:
    """Returns a lot size as it is used: rounded, from 1 to the public number of records."""
    rounded = int(round(lot_size))
    if not 1 <= rounded <= records:
        raise checks.Refused(("lot_size", rounded), BETWEEN.format(records))
    return rounded


@dataclasses.dataclass(frozen=True)
class RunShape:
    """Lots and steps of one run, and all that follows from them.

    `lot_size` is the expected number under Poisson sampling. `sampling` is "fixed", lots of one
    size drawn without replacement, replace one; or "poisson", add or remove one. `records` is the
    public number of training records, under fixed sampling exactly theirs; `size_bound`, public, is
    never exceeded, for Poisson lots. Noise is correlated over `bands` steps in a row, and lots are
    drawn from as many parts of the records, in turn. `stages` have factors on lots and noise.
    """

    lot_size: int
    steps: int
    sampling: str
    records: int
    size_bound: int
    bands: int = dataclasses.field(default=1, kw_only=True)
    stages: training.Stages | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        whole_lot_size(self.lot_size, self.records)
        check_bands(self.bands, self.sampling)
        if self.bands > self.records:
            raise checks.Refused(
                ("bands", self.bands), f": pass at most {self.records}, the records"
            )
        if self.lot_size * self.bands > self.records:
            words = (
                f", and a lot is drawn of one of {self.bands} parts of the records: pass at most"
            )
            raise checks.Refused(
                ("lot_size", self.lot_size),
                f"{words} {self.records // self.bands}, or fewer ",
                ("bands",),
            )
        if self.steps < 1:
            words = ": pass 1 or more, or more "
            raise checks.Refused(("steps", self.steps), words, ("epochs",))
        if self.stages is not None:
            assert self.of_stages  # Its refusals.

    @property
    def relation(self) -> str:
        """Returns the neighbouring relation that the sampling of lots goes with."""
        return REPLACE_ONE if self.sampling == FIXED else ADD_OR_REMOVE_ONE

    @functools.cached_property
    def lots(self) -> training.PoissonLots | training.CyclicPoissonLots | training.FixedLots:
        """Returns how the records of a step are drawn; of a stage whose lots have factor 1."""
        if self.sampling == FIXED:
            return training.FixedLots(dataset_size=self.records, lot_size=self.lot_size)
        bound, rate = self.size_bound, self.bands * self.lot_size / self.records
        capacity = accounting.lot_capacity(
            dataset_size=self._drawn_from,
            sampling_probability=min(1.0, rate * max((self.stages or ONE_STAGE).lot_size)),
            steps=self.steps,
            failure_probability=TRUNCATION_PROBABILITY,
        )
        if self.bands > 1:
            return training.CyclicPoissonLots(bound, rate, capacity, cycle=self.bands)
        return training.PoissonLots(
            dataset_size_bound=bound, sampling_probability=rate, capacity=capacity
        )

    @property
    def noise(self) -> training.BandedNoise | None:
        """Returns how the noise of steps is correlated; None: it is not."""
        return training.BandedNoise(self.bands) if self.bands > 1 else None

    @property
    def _drawn_from(self) -> int:
        """Returns the most records that a Poisson lot is drawn of."""
        return -(-self.size_bound // self.bands)

    @functools.cached_property
    def of_stages(self) -> list[Stage]:
        """Returns the stages of the run, one where it has none."""
        return (self.stages or ONE_STAGE).of_run(self.steps, self.lots)

    @functools.cached_property
    def failure_probability(self) -> float:
        """Returns the probability that any lot of the run is drawn otherwise than accounted for."""
        return sum(map(self._failure_of, self.of_stages))

    def _failure_of(self, stage: Stage) -> float:
        """Returns `failure_probability` of the lots of one stage."""
        steps, lots, _ = stage
        assert not isinstance(lots, NumberedLots)  # No option of a run draws them.
        failure = steps * lots.failure_probability_per_draw
        if isinstance(lots, training.FixedLots):
            return failure
        return failure + accounting.truncation_probability(
            dataset_size=self._drawn_from,
            sampling_probability=lots.sampling_probability,
            capacity=lots.capacity,
            steps=steps,
        )

    def price(self, noise_multiplier: float) -> accounting.Guarantee:
        """Returns the cost of one run; the noise multiplier is noise / clip norm."""
        costs = (self._price_of(stage, noise_multiplier) for stage in self.of_stages)
        return accounting.compose(*costs)

    def _price_of(self, stage: Stage, noise_multiplier: float) -> accounting.Guarantee:
        """Returns the cost of one stage of a run with this noise multiplier."""
        lots, noise = stage.lots, stage.noise * noise_multiplier
        assert not isinstance(lots, NumberedLots)
        if isinstance(lots, training.FixedLots):
            return accounting.dp_sgd_fixed_lots(
                dataset_size=self.records,
                lot_size=self.lot_size,
                noise_multiplier=noise,
                steps=stage.steps,
                failure_probability=self._failure_of(stage),
            )
        return accounting.dp_sgd(
            sampling_probability=lots.sampling_probability,
            noise_multiplier=noise,
            # A record is in one part, whose turn comes so often at most.
            steps=-(-stage.steps // self.bands),
            failure_probability=self._failure_of(stage),
        )


@dataclasses.dataclass(frozen=True)
class RunSetting(RunShape):
    """Holds all that a run's privacy cost depends on; drawn with `probability`.

    `noise_multiplier` is noise / clip norm, nan where it is not known yet. `share`, in (0, 1] and
    public, is what a run is expected to see of the records: a lot is drawn of these alone, each
    with the same probability.
    """

    noise_multiplier: float
    probability: float = 1.0
    share: float = 1.0

    @property
    def expected_lot_size(self) -> float:
        """Returns a lot's expected number of records, which is public and divides a step's sum."""
        return self.lot_size if self.share == 1.0 else self.share * self.lot_size

    @property
    def noise_over_clip_norm(self) -> float:
        """Returns the std of the noise on a clipped sum, over the clip norm."""
        return self.noise_multiplier * (2.0 if self.relation == REPLACE_ONE else 1.0)

    def guarantee(self, noise_multiplier: float | None = None) -> accounting.Guarantee:
        """Returns the cost of training one run under this setting; with this noise, if given."""
        return self.price(self.noise_multiplier if noise_multiplier is None else noise_multiplier)


def run_settings(problem: Problem) -> list[RunSetting]:
    """Lists the settings that a candidate may have; a noise multiplier not given is nan."""
    space, options = problem.space, problem.run
    check_neighbours(options.sampling, problem.train, problem.validation)
    if options.steps is not None and options.epochs is not None:
        raise checks.Refused(("steps",), " and ", ("epochs",), " are both given: pass one of them")
    for name in ("lot_size", "steps", "epochs", "noise_multiplier"):
        if name in space.parameters and getattr(options, name) is not None:
            words = " is given both in the space and beside it: keep one of them"
            raise checks.Refused((name,), words)
    for name, beside in (("steps", "epochs"), ("epochs", "steps")):
        if name in space.parameters and getattr(options, beside) is not None:
            raise checks.Refused(
                f"the space has {name}, so ", (beside,), " beside it is not read: drop it"
            )
    settings = []
    for drawn, probability in space.accounted_settings():
        chosen: dict[str, Any] = {**vars(options), **drawn}
        if "steps" in drawn:
            chosen["epochs"] = None
        if "epochs" in drawn:
            chosen["steps"] = None
        settings.append(_one_setting(problem.train, chosen, probability, options.sampling))
    return settings


def _one_setting(
    train: Sizes, chosen: Mapping[str, Any], probability: float, sampling: str
) -> RunSetting:
    """Rounds one choice of lot size, steps and noise to what a run will use."""
    size = train.public_size
    wanted_lot = max(1, size // 16) if chosen["lot_size"] is None else chosen["lot_size"]
    lot_size = whole_lot_size(wanted_lot, size)
    if chosen["steps"] is not None:
        steps = int(round(chosen["steps"]))
    else:
        steps = round((20.0 if chosen["epochs"] is None else chosen["epochs"]) * size / lot_size)
    noise = chosen["noise_multiplier"]
    noise = math.nan if noise is None else float(noise)
    if noise < 0 or math.isinf(noise):
        raise checks.Refused(("noise_multiplier", noise), ": pass a finite number >= 0")
    records = train.number if sampling == FIXED else size
    assert records is not None  # It is public under fixed lots.
    sizes = lot_size, steps, sampling, records, train.size_bound
    bands, stages = int(chosen["bands"] or 1), chosen["stages"]
    setting = RunSetting(*sizes, noise, probability, bands=bands, stages=stages)
    check_worth_pricing(steps, noise * min((stages or ONE_STAGE).noise), lot_size / size)
    return setting


def the_one_setting(problem: Problem) -> RunSetting:
    """Returns the setting of runs that all cost the same; its noise is nan where not known yet.

    The space must draw nothing that a cost depends on.
    """
    (setting,) = run_settings(problem)
    given = not math.isnan(setting.noise_multiplier)
    if given == (problem.epsilon is not None):
        raise ValueError(
            "pass either a target epsilon or a noise multiplier"
            + (", not both" if given else ": neither is given")
        )
    if given and not setting.noise_multiplier > 0:
        raise checks.Refused(("noise_multiplier", 0), " gives no privacy: pass a positive one")
    return dataclasses.replace(setting, probability=1.0)


def check_cost_is_fixed(space: Space) -> None:
    """Refuses a space that draws what the cost of a private training depends on."""
    for name in ACCOUNTED:
        law = space.parameters.get(name)
        if law is not None and len(set(law.values or ())) != 1:
            raise ValueError(
                f"the final training's cost must not depend on the candidate, and {name} changes "
                f"it: fix {name}, outside the space"
            )


def check_score_noise(score_noise: float | None, units: int) -> None:
    """Refuses a std of score noise, in records, that is not positive or too large to draw with."""
    if score_noise is None:
        return
    checks.positive("score_noise", score_noise)
    if score_noise * units > LARGEST_STD:
        words = (
            f": pass at most {LARGEST_STD / units:.4g}, which exact noise can still be drawn with"
        )
        raise checks.Refused(("score_noise", score_noise), words)


def training_guarantee(
    settings: list[RunSetting], noise_multiplier: float | None = None
) -> accounting.Guarantee:
    """Returns the cost of training one candidate: the mixture over its possible settings."""
    guarantees = [setting.guarantee(noise_multiplier) for setting in settings]
    if len(guarantees) == 1:
        return guarantees[0]
    return accounting.mixture(guarantees, weights=[setting.probability for setting in settings])


def calibrated(
    settings: list[RunSetting],
    whole: Callable[[accounting.Guarantee], accounting.Guarantee],
    epsilon: float,
    delta: float,
) -> list[RunSetting]:
    """Returns the settings with the least noise multiplier that meets the target.

    `whole` maps one candidate's guarantee to the whole procedure's, which has to meet the target.
    If no noise multiplier does, the error says what epsilon is attainable.
    """
    noise = accounting.calibrate(
        lambda multiplier: whole(training_guarantee(settings, multiplier)),
        epsilon=epsilon,
        delta=delta,
    )
    return [dataclasses.replace(setting, noise_multiplier=noise) for setting in settings]


def calibrated_beside(
    selection: accounting.Guarantee, setting: RunSetting, problem: Problem, costs: str, *advice: Any
) -> RunSetting:
    """Returns the final training's setting, with noise that meets the target beside a selection.

    Without a target it stays as it is. `costs` and `advice` (as in `checks.Words`) go into the
    error that is raised if the selection leaves nothing of the target.
    """
    epsilon, delta = problem.epsilon, problem.delta
    if epsilon is None:
        return setting
    alone = selection.epsilon(delta)
    if alone >= epsilon:
        spent = f"{costs} epsilon {alone:.4g} of {epsilon:g}: pass "
        raise checks.Refused(spent, *advice, ", or a larger ", ("epsilon",))
    (setting,) = calibrated(
        [setting], lambda run: accounting.compose(selection, run), epsilon, delta
    )
    return setting


_Priced = TypeVar("_Priced")


def meet_target(
    settings: list[RunSetting],
    problem: Problem,
    selected: Callable[[accounting.Guarantee], accounting.Guarantee],
    trained: Callable[[accounting.Guarantee], accounting.Guarantee],
    price: Callable[[list[RunSetting]], tuple[accounting.Guarantee, _Priced]],
    score_noise: float | None,
) -> tuple[list[RunSetting], tuple[accounting.Guarantee, _Priced]]:
    """Returns settings whose noise meets the problem's target, and what `price` makes of them.

    Args:
      settings: of a candidate; where the problem has no target they are priced as they are.
      problem: whose target epsilon it is.
      selected: the cost of one candidate's scores -> that of a selection by them alone.
      trained: the cost of one candidate's training -> that of the whole, as if scores cost nothing.
      price: settings -> (the cost of the whole, what else the caller keeps).
      score_noise: a std that was asked for, in records, or None.
    """
    epsilon, delta = problem.epsilon, problem.delta
    if epsilon is None:
        return settings, price(settings)
    reached = math.nan
    if score_noise is not None and not problem.validation_is_public:
        # Where the scores alone cost more than the target, no noise in training can help.
        scores = count_guarantee(score_noise, settings[0].relation, problem.units)
        reached = selected(scores).epsilon(delta)
    aim, near = epsilon, None
    unknown = settings

    @functools.cache  # The second calibration begins at what the first one ended with.
    def at(noise_multiplier: float) -> accounting.Guarantee:
        return trained(training_guarantee(unknown, noise_multiplier))

    # Calibrate training alone; where scores add a little, aim that much lower and try again.
    for _ in range(0 if reached > epsilon else 6):
        near = accounting.calibrate(at, epsilon=aim, delta=delta, near=near)
        settings = [dataclasses.replace(setting, noise_multiplier=near) for setting in settings]
        found = price(settings)
        if found[0].meets(epsilon, delta):
            return settings, found
        reached = found[0].epsilon(delta)
        aim *= 0.9995 * epsilon / reached
    raise checks.Refused(
        ("score_noise", score_noise),
        f" takes the total to epsilon {reached:.4g} at least, above the target {epsilon}: pass a "
        "larger one, or a larger ",
        ("epsilon",),
    )


def count_guarantee(std: float, relation: str, units: int = 1) -> accounting.Guarantee:
    """Returns the cost of a noisy sum of scores; std in records, `units` as `Task.units`."""
    return accounting.discrete_gaussian(std * units, units, relation=relation)


_SHARE_OF_THE_SCORE = 0.01
"""Share of a run's epsilon that its noisy score on the training records may add."""


def noise_on_training_scores(
    base: accounting.Guarantee, relation: str, delta: float, units: int = 1
) -> float:
    """Returns a std, in records, at which a noisy count adds little to a run on the same records.

    A record is trained on and scored, so the two compose. The std is the least power of 1.05
    times 0.5 at which both together cost at most 1.01 times the epsilon of training alone; nothing
    rests on it, since the total is computed from the std found. `base` is one candidate's training.
    """
    alone = base.epsilon(delta)
    most = (1.0 + _SHARE_OF_THE_SCORE) * alone
    # Where the search begins, as if both were Gaussians: mu of training, and 6 / mu.
    tail = math.sqrt(2.0 * math.log(1.0 / delta))
    near = 6.0 / (math.sqrt(tail**2 + 2.0 * alone) - tail) if 0.0 < alone < math.inf else None

    def adds_little(std: float) -> bool:
        count = count_guarantee(std, relation, units)
        return accounting.compose(base, count).epsilon(delta) <= most

    return least_std(adds_little, units, near)


def validation_noise(base: accounting.Guarantee, relation: str, units: int = 1) -> float:
    """Returns the least std, in records, at which a noisy count costs no more than training.

    A record is in the training part or in the validation part, so the two compose in parallel, and
    a noisy count whose privacy profile lies below the training run's adds nothing to the total.
    The std is searched over powers of 1.05 between 0.5 and 1e4 (or what can still be drawn)
    and never needs to be exact: the total is computed from the std found.
    """
    # Compare profiles from epsilon 0 to where training's own delta is negligible: 1e-11, or the
    # least power of 10 above what overflowing lots add at every epsilon.
    farthest = next(
        reach
        for tail in 10.0 ** np.arange(-11, 1)
        if math.isfinite(reach := base.epsilon(delta=min(float(tail), 0.5)))
    )
    grid = np.linspace(0.0, max(farthest, 1e-3), 60)
    allowed = base.pair.delta(grid) + 1e-13

    def dominated(std: float) -> bool:
        count = count_guarantee(std, relation, units)
        return bool(np.all(count.pair.delta(grid) <= allowed))

    return least_std(dominated, units)


def least_std(suffices: Callable[[float], bool], units: int, near: float | None = None) -> float:
    """Returns the least std 0.5 * 1.05^n that suffices, or the largest one if none does.

    `near` is a guess; the result does not depend on it.
    """
    most = min(1e4, LARGEST_STD / units)
    low, high = 0, math.floor(math.log(most / 0.5) / math.log(1.05))
    place, step = -1, high
    if near is not None and near >= 0.5:
        place, step = round(math.log(near / 0.5) / math.log(1.05)), 1
    while low < high:
        if not low <= place < high:
            place = (low + high) // 2
        if suffices(0.5 * 1.05**place):
            high, place = place, place - step
        else:
            low, place = place + 1, place + step
        step *= 2
    return round(0.5 * 1.05**high, 6)

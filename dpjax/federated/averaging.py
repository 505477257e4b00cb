"""Federated averaging under client-level privacy: clipped integer updates, everyone's own noise.

McMahan et al. 2017's federated averaging with the distributed discrete Gaussian mechanism of
Kairouz, Liu & Steinke 2021 (arXiv:2102.06387). Every round each client trains the global model on
its own records; the change of the parameters is scaled, rounded to integers and made no longer than
a public bound; the client adds its own share of integer noise, and only the sum of all is seen. The
server divides it by the public number of clients.

This is the mechanism alone, free of any framework: `AveragingSettings.plan` calibrates the noise,
`noisy_update` is what a client sends, `averaged` what the server makes of the sum. NumPy on the
host; noise from the operating system's randomness. The training itself is in `local_training`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from dpjax import accounting, checks
from dpjax.accounting.stated_epsilon import six_digits_up
from dpjax.federated.summed import SummedMechanism, check_settings
from dpjax.randomness.host_randomness import HostRandomness

_NOISE = "discrete_gaussian"
_LEAST_LOCAL_STD = 4.0
"""Least std of a client's noise, in integers: rounding then adds 0.5% to its variance, and
the tau of Kairouz et al. vanishes."""


class AveragingAborted(ValueError):
    """Says that a round ended without output: too few updates in the sum, or no valid sum."""


@dataclasses.dataclass(frozen=True)
class AveragingSettings:
    """States the public rules of private federated averaging; fix them before data is seen.

    Example:
      >>> from dpjax import federated
      >>> settings = federated.AveragingSettings(clients=50, dimension=1000, rounds=10, epsilon=8.0)
      >>> std = settings.plan().standard_deviation
      >>> print(f"noise of {std:.2f} clip norms on each entry of the average")
      noise of 0.09 clip norms on each entry of the average

    Attributes:
      clients: n, all of whom take part in every round.
      dimension: d, number of the model's parameters.
      rounds: R.
      epsilon: target of all rounds and of the earlier releases given to `plan`, together; infinite
        for training without noise, which is NOT private.
      delta: target.
      clip_norm: Euclidean norm that a client's update is cut to.
      missing_fraction: xi; the guarantee holds in full while at most this fraction of the clients
        drop out or collude with the server (both together).
      server_rate: factor of the averaged update.
    """

    clients: int
    dimension: int
    rounds: int = 10
    epsilon: float = 8.0
    delta: float = 1e-5
    clip_norm: float = 1.0
    missing_fraction: float = 0.1
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        check_settings(
            self,
            "update",
            whole={"dimension": 1, "rounds": 1},
            numbers={
                "epsilon": _epsilon,
                "delta": checks.probability,
                "clip_norm": checks.positive,
                "server_rate": checks.positive,
            },
        )

    @property
    def private(self) -> bool:
        """Returns whether there is any noise."""
        return math.isfinite(self.epsilon)

    def plan(self, before: accounting.Guarantee | None = None) -> AveragingPlan:
        """Calibrates the noise: the least for which `AveragingPlan.total` meets the target.

        Args:
          before: guarantee of what the same clients released before, for example the vote.
        """
        if before is not None:
            checks.instance("before", before, accounting.Guarantee, "VotePlan.guarantee")
        return _plan(self, before)


@dataclasses.dataclass(frozen=True)
class AveragingPlan(SummedMechanism):
    """Plans federated averaging with calibrated noise.

    Formal guarantees: replace one client (all of its records, in every round). The noisy sums of
    all rounds, hence every model made from them, cost what `guarantee` states, if
      * every honest client sends `noisy_update` once a round, with noise of its own secret
        randomness: integers whose Euclidean norm AFTER rounding is at most `bound`, plus noise;
      * the server sees nothing but the sums, and at least `minimum_survivors` of the updates in
        each come from clients whose noise it does not know (colluders count as missing);
      * who drops out does not depend on anyone's records.
    `local_noise` has its law up to a total variation of 2^-300 per entry, and never exceeds `clip`
    together with an update. `total` composes it with what was released `before`.

    Attributes:
      settings: the rule.
      bound: Euclidean norm, in units of the integers, that no update exceeds after rounding; it
        stands for `clip_norm`.
      local_variance: parameter of one client's noise on one entry; 0 without noise.
      before: see `AveragingSettings.plan`.
    """

    settings: AveragingSettings
    bound: int
    local_variance: float
    before: accounting.Guarantee | None = None
    vector: ClassVar[str] = "update"

    @functools.cached_property
    def guarantee(self) -> accounting.Guarantee | None:
        """Returns the cost of all rounds, with as few survivors as allowed; None without noise."""
        if not self.settings.private:
            return None
        settings = self.settings
        return accounting.federated_averaging(
            self.local_variance,
            self.bound,
            settings.dimension,
            settings.clients,
            settings.rounds,
            missing_fraction=settings.missing_fraction,
        )

    @functools.cached_property
    def total(self) -> accounting.Guarantee | None:
        """Returns the cost of all rounds and of what was released before; None without noise."""
        if self.before is None or self.guarantee is None:
            return self.guarantee
        return accounting.compose(self.before, self.guarantee)

    @property
    def entries(self) -> int:
        """Returns the number of the model's parameters."""
        return self.settings.dimension

    @property
    def largest_entry(self) -> int:
        """Returns `bound`: no entry exceeds the norm of its vector."""
        return self.bound

    @property
    def noise(self) -> str | None:
        """Names the distribution of the noise; None without."""
        return _NOISE if self.settings.private else None

    @property
    def scale(self) -> float:
        """Returns the number of integer units in one unit of the parameters."""
        return self.bound / self.settings.clip_norm

    @property
    def standard_deviation(self) -> float:
        """Returns the std of the noise on the average of all clients, in parameter units."""
        return math.sqrt(self.local_variance / self.settings.clients) / self.scale

    def statement(self) -> dict[str, Any]:
        """States the public facts of the training, for JSON."""
        settings = dataclasses.asdict(self.settings)
        settings["epsilon"] = settings["epsilon"] if self.settings.private else None
        return settings | {
            "bound_after_rounding": self.bound,
            "local_variance": self.local_variance,
            "clip": self.clip,
            "noise": "discrete Gaussian, one share from every client, rounds composed",
            "noise_on_an_average_standard_deviation": self.standard_deviation,
        }


def quantised(update: np.ndarray, plan: AveragingPlan) -> np.ndarray:
    """Rounds a client's update to (d,) int64 whose Euclidean norm is at most `plan.bound`.

    Entries are scaled and rounded to the nearest integer; where the rounded vector is too long, it
    is shortened and rounded again. The sensitivity is bounded by the norm of the integers, which is
    computed exactly, without floating-point rounding. A vector with a NaN or an infinity (training
    diverged) becomes zeros.
    """
    checks.instance("plan", plan, AveragingPlan, "AveragingSettings(50, 1000).plan()")
    update = checks.array("update", update, nan=True)
    if update.shape != (plan.settings.dimension,):
        raise ValueError(
            f"update of shape {update.shape}: pass ({plan.settings.dimension},), the parameters of "
            "the model"
        )
    largest = float(np.max(np.abs(update))) if np.isfinite(update).all() else 0.0
    if largest == 0.0:
        return np.zeros(update.shape, dtype=np.int64)
    # Divided by the largest entry, so that no square overflows or underflows.
    direction = update / largest
    cut = plan.settings.clip_norm / float(np.linalg.norm(direction))
    wanted = direction * (plan.scale * min(largest, cut))
    while True:
        rounded = np.rint(wanted).astype(np.int64)
        squared = int(rounded @ rounded)
        if squared <= plan.bound**2:
            return rounded
        wanted *= min(0.999, plan.bound / math.sqrt(squared))


def noisy_update(
    update: np.ndarray, plan: AveragingPlan, source: HostRandomness, stream: int = 0
) -> np.ndarray:
    """Returns a client's vector for the secure sum: its `quantised` update plus its noise.

    Formal guarantees: alone it is no private release; it must not leave the client but through a
    secure sum of at least `plan.minimum_survivors` of its kind. The update in it is one of integers
    with norm at most `plan.bound`.

    It is (d,) int64, each entry at most `plan.clip` in absolute value. Pass zeros for a client that
    has nothing to train on; for `source` and `stream` see `AveragingPlan.local_noise`.
    """
    integers = quantised(update, plan)  # Refuses what is no plan.
    return plan.noisy(integers, source, stream)


def averaged(total: np.ndarray, plan: AveragingPlan, survivors: int) -> np.ndarray:
    """Returns the server's step, (d,) float64: the sum over the PUBLIC number of clients.

    Post-processing of the noisy sum. Dividing by the number of survivors instead would enlarge the
    step, and its noise, in a round with dropouts; the planned number never changes. Raises
    `AveragingAborted` if fewer updates than `plan.minimum_survivors` (or more than all) are in the
    sum, or if no sum of so many updates can have this total.
    """
    checks.instance("plan", plan, AveragingPlan, "AveragingSettings(50, 1000).plan()")
    total = plan.checked_total(total, survivors, AveragingAborted)
    settings = plan.settings
    return settings.server_rate * total / (plan.scale * settings.clients)


def _epsilon(name: str, value: object) -> float:
    """Checks as `checks.positive` does, but allows infinity, which stands for no noise."""
    wanted = "> 0, or infinite for training without noise"
    found = checks.number(name, value, wanted, finite=False)
    if not found > 0.0:
        raise checks.refused(name, value, wanted)
    return found


@functools.lru_cache(maxsize=64)
def _plan(settings: AveragingSettings, before: accounting.Guarantee | None) -> AveragingPlan:
    """Finds the smallest bound on an update's norm with which the noise is large enough."""
    # Rounding to integers lengthens a vector from `bound` to about sqrt(bound^2 + d / 12): by 1% if
    # the bound is 2 sqrt(d). `quantised` shortens it again.
    bound = 1 << (math.ceil(2.0 * math.sqrt(settings.dimension)) - 1).bit_length()
    variance = 0.0
    while settings.private:
        variance = accounting.calibrate_federated_averaging(
            settings.epsilon,
            settings.delta,
            bound=bound,
            dimension=settings.dimension,
            clients=settings.clients,
            rounds=settings.rounds,
            missing_fraction=settings.missing_fraction,
            before=before,
        )
        variance = six_digits_up(variance)
        if variance >= _LEAST_LOCAL_STD**2:
            break
        bound *= 2
    plan = AveragingPlan(settings, bound, variance, before)
    plan.check_modulus("fewer clients, fewer rounds or a larger epsilon")
    return plan

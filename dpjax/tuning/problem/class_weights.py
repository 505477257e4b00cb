"""Public weights of classes: scores that rank candidates on imbalanced data, losses, decisions.

The weights are costs, or one over the classes' public priors; never counts of the records. A
record scores its class's weight, over the largest, times something in [0, 1]: right or wrong, a
clipped log-likelihood or a Brier score. So a score is a sum over records and one record moves it by
1 at most, as it must (an AUC has no such bound: see the guide on imbalanced classes).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.models.functional import ExampleLoss, computed_in

PyTree = Any

ACCURACY, LOG_LIKELIHOOD, BRIER = "accuracy", "log_likelihood", "brier"
SCORES = (ACCURACY, LOG_LIKELIHOOD, BRIER)
LOSS, DECISION = "loss", "decision"
PLACES = (LOSS, DECISION)

MOST_NATS = 4.0
"""Cut of a log-likelihood: a right label with a probability below e^-4 scores 0."""


@dataclasses.dataclass(frozen=True)
class Weighing:
    """What a record scores, and where the classes' weights go.

    `weights`, one per class, are positive and divided by the largest; empty for none. `place` is
    "loss": a record counts at a step with its weight as the probability; or "decision": the model
    is trained without them and predicts the class with the largest score + log weight, which has
    the least expected cost. `kind` is one of `SCORES`.
    """

    kind: str = ACCURACY
    weights: tuple[float, ...] = ()
    place: str = DECISION

    @classmethod
    def of(
        cls,
        score: str,
        class_weights: Sequence[float] | None,
        class_priors: Sequence[float] | None,
        weights_in: str,
    ) -> Weighing:
        """Checks these arguments of `classification`, and returns the weighing they ask for."""
        if score not in SCORES:
            raise checks.Refused(
                ("score", score),
                f": pass one of {', '.join(SCORES)}, a sum over records (AUC and F1 have no bound "
                "on one record's influence)",
            )
        if weights_in not in PLACES:
            raise checks.refused("weights_in", weights_in, " or ".join(PLACES))
        if class_weights is None and class_priors is None:
            return cls(score, (), weights_in)
        if class_weights is not None and class_priors is not None:
            both = ("class_weights",), " and ", ("class_priors",), " are both given"
            raise checks.Refused(*both, ": pass one of them")
        name = "class_weights" if class_priors is None else "class_priors"
        value = class_weights if class_priors is None else class_priors
        given = checks.vector(name, value)
        if len(given) < 2 or not (np.isfinite(given) & (given > 0.0)).all():
            wanted = ": pass positive numbers, one a class, such as 0.9 and 0.1"
            raise checks.Refused((name, value), wanted)
        if class_priors is not None:
            if not math.isclose(math.fsum(given), 1.0, rel_tol=0.01):
                words = " must add up to 1: pass each class's public share"
                raise checks.Refused((name, value), words)
            given = 1.0 / given
        return cls(score, tuple(float(one) for one in given / given.max()), weights_in)

    @property
    def is_plain(self) -> bool:
        """Returns whether a record is right or wrong, whatever its class."""
        return self.kind == ACCURACY and not self.weights

    @property
    def description(self) -> str:
        """Describes score and weights in a release, after the model's description."""
        if self.is_plain:
            return ""
        if not self.weights:
            return f", scored by {self.kind.replace('_', ' ')}"
        weights = ", ".join(f"{one:.6g}" for one in self.weights)
        return (
            f", scored by {self.kind.replace('_', ' ')} with public class weights ({weights}), "
            f"which are in the {self.place} too"
        )

    @property
    def decision_weights(self) -> tuple[float, ...]:
        """Returns the weights that predictions need; empty where the largest score wins."""
        return self.weights if self.place == DECISION else ()

    def decided(self, scores: jax.Array) -> jax.Array:
        """Returns scores (..., classes) of which the largest is the prediction.

        `scores` may be (..., 1), a margin for class 1.
        """
        if scores.shape[-1] == 1:
            scores = jnp.concatenate([jnp.zeros_like(scores), scores], axis=-1)
        if not self.decision_weights:
            return scores
        added = jnp.log(jnp.asarray(self.weights, scores.dtype))
        return scores + jnp.broadcast_to(added, scores.shape)

    @property
    def thins(self) -> bool:
        """Returns whether the loss leaves records out at random, by their class's weight."""
        return self.place == LOSS and bool(self.weights)

    def loss(self, loss: Callable[..., jax.Array], with_rng: bool) -> Callable[..., jax.Array]:
        """Returns a loss that is 0 unless a coin, of its class's weight, lets the example count.

        Clipping would undo a factor on the loss: it makes long gradients equally long. A record
        that does not count at a step adds nothing to its sum, so a clipped gradient counts by its
        weight on average; the bound on one record is the same. Losses are (parameters, (inputs,
        label), key, ...); the one given takes a key only `with_rng`.
        """

        def of_example(params: PyTree, example: PyTree, key: jax.Array, *rest: Any) -> jax.Array:
            drawn, own = jax.random.split(key)
            weight = jnp.asarray(self.weights, jnp.float32)[example[1]]
            value = loss(params, example, *((own,) if with_rng else ()), *rest)
            return jnp.where(jax.random.bernoulli(drawn, weight), value, 0.0)

        def in_dtype(dtype: str) -> Callable[..., jax.Array]:
            return self.loss(computed_in(loss, dtype), with_rng)

        return ExampleLoss(of_example, in_dtype)

    def score(self, scores: jax.Array, label: jax.Array) -> jax.Array:
        """Returns a record's score, in [0, 1], from the model's scores (classes,)."""
        decided = self.decided(scores)
        if self.kind == ACCURACY:
            value = (jnp.argmax(decided) == label).astype(jnp.float32)
        elif self.kind == LOG_LIKELIHOOD:
            value = 1.0 + jnp.maximum(jax.nn.log_softmax(decided)[label], -MOST_NATS) / MOST_NATS
        else:  # Brier's score, from 0 to 2, turned round.
            wrong = jax.nn.softmax(decided) - jax.nn.one_hot(label, decided.shape[-1])
            value = 1.0 - 0.5 * jnp.sum(jnp.square(wrong))
        return value * jnp.asarray(self.weights, value.dtype)[label] if self.weights else value

"""Public settings of a federation beside the vote's: local training and averaging.

Each is read from Flower's flat configuration (`filled`) and from command lines, by its fields.
Nothing heavy is imported here: a client's process reads its settings at every message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dpjax import checks

if TYPE_CHECKING:
    from flax import linen as nn

Config = Mapping[str, str | int | float | bool]

MINIMUM_CLIENTS = 3
"""Of two clients, each could subtract its own vector from the sum and be left with the other's and
half the noise."""

MODULUS = 2**32
"""Flower's secure sums are modulo this number."""


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """Says how every client trains every candidate on its own records (`train_clients`).

    Attributes:
      model: a name in `models.NAMES`; DP-HYPE's are conv_pool (MNIST), conv_blocks (CIFAR-10) and
        an mlp of widths 64,64 (Adult).
      classes: number of classes, public.
      widths: hidden layers of an mlp.
      epochs: local epochs.
      batch_size: of local SGD.
      test_fraction: share of its records a client tests on.
      seed: of initial parameters, splits and order; public.
    """

    model: str = "mlp"
    classes: int = 10
    widths: tuple[int, ...] = (64,)
    epochs: int = 5
    batch_size: int = 64
    test_fraction: float = 0.2
    seed: int = dataclasses.field(default=0, metadata={"flag": "training_seed"})

    def __post_init__(self) -> None:
        self.module()
        if min(self.epochs, self.batch_size) < 1 or not 0.0 < self.test_fraction < 1.0:
            given = ("epochs", self.epochs), ", ", ("batch_size", self.batch_size), ", "
            words = ": pass whole numbers of at least 1 and a fraction between 0 and 1"
            raise checks.Refused(*given, ("test_fraction", self.test_fraction), words)

    def module(self) -> nn.Module:
        """Makes the Linen module that these settings name."""
        from dpjax import models

        return models.build_module(self.model, self.classes, widths=self.widths)

    def loss(self) -> Callable[[Any, Any], Any]:
        """Returns the loss that the model is meant for."""
        from dpjax import models

        return models.default_loss(self.model)


@dataclasses.dataclass(frozen=True)
class Averaging:
    """Configures private federated averaging with the winner (`federated.averaging`).

    Delta, the fraction of missing clients and local training are the vote's.

    Attributes:
      rounds: how many; 0 for none, the vote alone.
      total_epsilon: target of the vote and all rounds together; infinite for training without
        noise, which is NOT private: clients refuse it unless their owners allow it.
      clip_norm: Euclidean norm that a client's update is cut to.
      server_rate: factor of the averaged update.
      input_shape: of one example, public: the server builds the model without any record.
    """

    rounds: int = dataclasses.field(default=0, metadata={"flag": "train_rounds"})
    total_epsilon: float = 8.0
    clip_norm: float = 1.0
    server_rate: float = 1.0
    input_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise checks.Refused(("rounds", self.rounds), ": pass 0 for the vote alone, or more")
        if self.rounds and (not self.input_shape or min(self.input_shape) < 1):
            words = ": pass the public shape of one example, such as (28, 28, 1)"
            raise checks.Refused(("input_shape", self.input_shape), words)


def filled(kind: type, config: Config, given: Mapping[str, Any] | None = None) -> Any:
    """Makes an instance of a dataclass from the configuration's values for its fields.

    Names of the configuration have dashes; fields in `given` are not read from it.
    """
    values = dict(given or {})
    for field in dataclasses.fields(kind):
        key = field.name.replace("_", "-")
        if field.name in values:
            continue
        if key not in config:
            if field.default is dataclasses.MISSING:
                raise ValueError(f"the run's configuration has no {key!r}: pass it")
            continue
        wanted = {"int": int, "float": float, "str": str}[str(field.type)]
        value = config[key]
        # TOML writes 1 for 1.0. Nothing else is converted, so no value changes.
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise ValueError(
                f"{key}={value!r}: pass {'an' if wanted is int else 'a'} {wanted.__name__}"
            )
        values[field.name] = value
    return kind(**values)

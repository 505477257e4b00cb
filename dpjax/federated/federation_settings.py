"""Public settings of a federation beside the vote's: local training, averaging, a split of data.

Each is read from Flower's flat configuration (`filled`) and from command lines, by its fields.
Nothing heavy is imported here: a client's process reads its settings at every message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flax import linen as nn

    from dpjax import data

Config = Mapping[str, str | int | float | bool]


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """How every client trains every candidate on its own records; see `federated.train_clients`.

    Example:
      >>> from dpjax import federated
      >>> federated.LocalTraining(model="logistic_regression", classes=10).epochs
      5

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
            raise ValueError(
                f"epochs={self.epochs}, batch_size={self.batch_size}, test_fraction="
                f"{self.test_fraction}: pass whole numbers of at least 1 and a fraction between 0 "
                "and 1"
            )

    def module(self) -> nn.Module:
        """The Linen module.

        Raises:
          ValueError: for an unknown name, fewer than two classes, or widths below 1.
        """
        from dpjax import models

        return models.build_module(self.model, self.classes, widths=self.widths)

    def loss(self) -> Callable[[Any, Any], Any]:
        """The loss that the model is meant for."""
        from dpjax import models

        return models.default_loss(self.model)


@dataclasses.dataclass(frozen=True)
class Averaging:
    """Private federated averaging with the winner, after the vote; see `federated.averaging`.

    Delta, the fraction of missing clients and local training are the vote's.

    Example:
      >>> from dpjax import federated
      >>> federated.Averaging(rounds=10, total_epsilon=8.0, input_shape=(28, 28, 1)).clip_norm
      1.0

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
            raise ValueError(f"rounds={self.rounds}: pass 0 for the vote alone, or more")
        if self.rounds and (not self.input_shape or min(self.input_shape) < 1):
            raise ValueError(
                f"input_shape {self.input_shape}: training needs the public shape of one example, "
                "as in input-shape=28,28,1"
            )


@dataclasses.dataclass(frozen=True)
class DataSplit:
    """How one published data set is divided over simulated clients.

    Attributes:
      clients: how many parts.
      dataset: name for `data.load`.
      concentration: Dirichlet alpha of label and size skew between clients; 0 for even parts.
      minimum_size: fewest records of a client.
      partition_seed: public seed of the split.
      data_dir: folder where the files of data sets are looked for.
      cache_dir: where downloads go, if elsewhere.
    """

    clients: int
    dataset: str = "digits"
    concentration: float = 0.0
    minimum_size: int = 10
    partition_seed: int = 0
    data_dir: str = ""
    cache_dir: str = ""

    def load(self) -> data.Dataset:
        """The whole data set."""
        from dpjax import data

        return data.load(self.dataset, self.data_dir or None, cache_dir=self.cache_dir or None)


def filled(kind: type, config: Config, given: Mapping[str, Any] | None = None) -> Any:
    """An instance of a dataclass from the keys of a configuration that are its fields.

    Args:
      kind: the class.
      config: names with dashes; other names are not read.
      given: fields that are not read from it.

    Raises:
      ValueError: for a field that is missing, or of another kind.
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
        # TOML writes 1 for 1.0; nothing else is converted, so that nothing is lost.
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise ValueError(
                f"{key}={value!r}: pass {'an' if wanted is int else 'a'} {wanted.__name__}"
            )
        values[field.name] = value
    return kind(**values)

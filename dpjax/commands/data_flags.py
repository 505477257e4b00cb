"""The flags that name data, model and optimiser, shared by the binaries; and what they stand for.

A binary calls `define` (or `define_folders`) once, with the words and defaults that are its own;
the flags then belong to that binary, as if it had defined them itself. Importing this module is
cheap: JAX comes in with the functions.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

if TYPE_CHECKING:
    from dpjax import data, tuning

flags.disclaim_key_flags()

READS = {
    "sgd": ("learning_rate",),
    "momentum": ("learning_rate", "momentum"),
    "adam": ("learning_rate", "beta_1", "beta_2", "adam_epsilon"),
}
"""The hyperparameters that each optimiser reads."""

LARGEST_SIZE, LARGEST_CLASSES = 10**9, 10**5
CONSTANT, COSINE = "constant", "cosine"
SCHEDULES = (CONSTANT, COSINE)


def define_folders(
    unset: str | None = None,
    cache_help: str = "Where downloads and caches go, if not into --data_dir.",
) -> tuple[flags.FlagHolder, flags.FlagHolder]:
    """Defines --data_dir and --cache_dir; returns their holders.

    Args:
      unset: the default of both.
      cache_help: words for --cache_dir.
    """
    return (
        flags.DEFINE_string(
            "data_dir", unset, "Folder where the files of data sets are looked for."
        ),
        flags.DEFINE_string("cache_dir", unset, cache_help),
    )


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """Holders of the flags that `define` defined, and what is made of their values."""

    dataset: flags.FlagHolder[str]
    public_size: flags.FlagHolder[int | None]
    classes: flags.FlagHolder[int | None]
    data_dir: flags.FlagHolder[str | None]
    cache_dir: flags.FlagHolder[str | None]
    model: flags.FlagHolder[str]
    widths: flags.FlagHolder[Sequence[str]]
    optimizer: flags.FlagHolder[str]

    @property
    def name(self) -> str:
        """The data set's name, of a file its name without folder and ending."""
        return os.path.splitext(os.path.basename(self.dataset.value))[0]

    def refuse_unread(self, *names: str) -> None:
        """Refuses what would be ignored: a file's numbers without a file, widths without an mlp.

        Args:
          names: of all data sets that are loaded.

        Raises:
          ValueError: such a flag, or a number that no data set can have.
        """
        files = any(name.endswith(".npz") for name in names)
        for flag, most in (("public_size", LARGEST_SIZE), ("classes", LARGEST_CLASSES)):
            value = flags.FLAGS[flag].value
            if value is not None and not files:
                raise ValueError(f"--{flag} is for your own .npz; published data has its own")
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"--{flag}={value}: pass a whole number from 1 to {most}")
        if flags.FLAGS["widths"].present and self.model.value != "mlp":
            raise ValueError(f"--widths belongs to --model=mlp; {self.model.value} has none")

    def load(
        self,
        name: str,
        *,
        public_size: int | None,
        sampling: str,
        size_bound: int | None = None,
    ) -> data.Dataset:
        """Loads a data set.

        Args:
          name: of a published one, or the path of an .npz file.
          public_size: of the file's training records; not read for a published data set.
          sampling: "fixed" or "poisson".
          size_bound: of the file's training records, if it is not public_size.

        Raises:
          ValueError: for a name or file that cannot be loaded.
        """
        from dpjax import data

        own = {}
        if name.endswith(".npz"):
            own = {
                "public_size": public_size,
                "size_bound": size_bound,
                "classes": self.classes.value,
                # Replacing a record must not move it from training to validation.
                "identified_by": "slot" if sampling == "fixed" else None,
            }
        return data.load(name, data_dir=self.data_dir.value, cache_dir=self.cache_dir.value, **own)

    def task(self, classes: int, train: data.Split, scored: data.Split) -> tuning.Task:
        """What is learned: --model on `train`, judged on `scored`.

        Raises:
          ValueError: for --widths that are no whole numbers, or a model that does not fit the data.
        """
        from dpjax import models, tuning

        try:
            widths = [int(width) for width in self.widths.value]
        except ValueError:
            raise ValueError(
                f"--widths={','.join(self.widths.value)}: pass whole numbers such as 128,64"
            ) from None
        module = models.build_module(self.model.value, classes, widths=widths)
        loss = models.default_loss(self.model.value)
        return tuning.classification(module, train, scored, loss=loss)


def define(
    *,
    dataset_help: str,
    public_size_help: str,
    widths: Sequence[str],
    optimizer: str,
) -> DataFlags:
    """Defines the flags, for the module that calls; returns their holders.

    Args:
      dataset_help: words for --dataset; {names} stands for the names of published ones.
      public_size_help: words for --public_size.
      widths: default of --widths.
      optimizer: default of --optimizer.
    """
    from dpjax import data, models

    data_dir, cache_dir = define_folders()
    return DataFlags(
        dataset=flags.DEFINE_string(
            "dataset", "digits", dataset_help.format(names=", ".join(data.NAMES))
        ),
        public_size=flags.DEFINE_integer("public_size", None, public_size_help),
        classes=flags.DEFINE_integer("classes", None, "Your own .npz: public number of classes."),
        data_dir=data_dir,
        cache_dir=cache_dir,
        model=flags.DEFINE_enum("model", "logistic_regression", models.NAMES, "The model."),
        widths=flags.DEFINE_list("widths", list(widths), "Widths of an mlp's hidden layers."),
        optimizer=flags.DEFINE_enum("optimizer", optimizer, list(READS), "Optimiser."),
    )


@dataclasses.dataclass(frozen=True)
class NamedOptimizer:
    """An optimiser by its public name: hyperparameters -> optax transformation.

    Attributes:
      kind: one of `READS`.
      schedule: one of `SCHEDULES`, over a run's steps.
    """

    kind: str
    schedule: str = CONSTANT

    @property
    def description(self) -> dict[str, str]:
        """What a release says of it."""
        of_steps = " over the run's steps" if self.schedule == COSINE else ""
        return {"name": self.kind, "learning_rate_schedule": f"{self.schedule}{of_steps}"}

    def __call__(self, hyperparameters: Mapping[str, Any]) -> Any:
        """The optax transformation of one candidate; with a schedule reads `steps` too."""
        import jax.numpy as jnp

        from dpjax import training

        def cosine(step: Any) -> Any:
            return 0.5 * (1 + jnp.cos(jnp.pi * step / hyperparameters["steps"]))

        kinds = {"sgd": training.sgd, "momentum": training.momentum, "adam": training.adam}
        return kinds[self.kind](cosine if self.schedule == COSINE else None)(hyperparameters)

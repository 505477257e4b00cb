"""The flags that name data, model and optimiser, shared by the binaries; and what they stand for.

A binary makes `DataFlags` once, with the words and defaults that are its own; the flags then belong
to that binary, as if it had defined them itself. What a data set, a file of your own and an
optimiser take beside has flags by its fields (`derived_flags`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from dpjax import data, models, training, tuning
from dpjax.commands import derived_flags
from dpjax.data import features, source
from dpjax.training import schedules

flags.disclaim_key_flags()

LARGEST = {"public_size": 10**9, "classes": 10**5}
OWN_FILE, OWN_TABLE = "your own .npz", "your own .csv"
_FILES = {".npz": OWN_FILE, ".csv": OWN_TABLE}


def _kind(dataset: str) -> str:
    return _FILES.get(os.path.splitext(dataset)[1], dataset)


class DataFlags:
    """The flags, defined for the module that calls, and what is made of their values.

    Attributes:
      dataset, data_dir, cache_dir, features, model, widths, optimizer: holders of the flags.
    """

    def __init__(self, *, dataset_help: str, widths: Sequence[str], optimizer: str):
        """Defines the flags.

        Args:
          dataset_help: words for --dataset; {names} stands for the names of published ones.
          widths: default of --widths.
          optimizer: default of --optimizer.
        """
        of_file = derived_flags.options_of(
            data.load_arrays, "path", "identified_by", documented=data.from_arrays
        )
        of_table = derived_flags.options_of(data.load_table, "path", "identified_by")
        self._of_data = {OWN_FILE: of_file, OWN_TABLE: of_table} | {
            name: derived_flags.options_of(one.encode) for name, one in source.SOURCES.items()
        }
        self._of_optimizers = {
            name: derived_flags.options_of(one.make) for name, one in training.OPTIMIZERS.items()
        }
        derived_flags.define(self._of_data, "--dataset=")
        derived_flags.define(self._of_optimizers, "--optimizer=")
        dataset_help = dataset_help.format(names=", ".join(data.NAMES))
        self.dataset = flags.DEFINE_string("dataset", "digits", dataset_help)
        self.data_dir = flags.DEFINE_string(
            "data_dir", None, "Folder where the files of data sets are looked for."
        )
        self.cache_dir = flags.DEFINE_string(
            "cache_dir", None, "Where downloads go, if not into --data_dir."
        )
        self.features = flags.DEFINE_enum(
            "features",
            None,
            list(data.FEATURES),
            "Public features of each record in the place of its inputs: "
            + "; ".join(f"{name}: {known.description}" for name, known in data.FEATURES.items())
            + ".",
        )
        self.model = flags.DEFINE_enum("model", "logistic_regression", models.NAMES, "The model.")
        self.widths = flags.DEFINE_list("widths", widths, "Widths of an mlp's hidden layers.")
        names = list(training.OPTIMIZERS)
        self.optimizer = flags.DEFINE_enum("optimizer", optimizer, names, "Optimiser.")

    @property
    def name(self) -> str:
        """The data set's name, of a file its name without folder and ending."""
        return os.path.splitext(os.path.basename(self.dataset.value))[0]

    def refuse_unread(self, *names: str) -> None:
        """Refuses what would be ignored: flags of another data set, optimiser or model.

        Args:
          names: of all data sets that are loaded.

        Raises:
          ValueError: such a flag, or a number that no data set can have.
        """
        for name in filter(None, names):
            if name not in data.NAMES and os.path.splitext(name)[1] not in ("", *_FILES):
                raise ValueError(
                    f"{name} is no data set that is read: pass an .npz file (np.savez with inputs= "
                    "and labels=), a .csv table with its --schema, or one of "
                    f"{', '.join(data.NAMES)}"
                )
        for by_owner, chosen, of in (
            (self._of_data, {_kind(name) for name in names}, "dataset"),
            (self._of_optimizers, {self.optimizer.value}, "optimizer"),
            ({"mlp": [_WIDTHS]}, {self.model.value}, "model"),
        ):
            derived_flags.refuse_others(derived_flags.owners_of(by_owner), chosen, of)
        for name, most in LARGEST.items():
            value = flags.FLAGS[name].value
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"--{name}={value}: pass a whole number from 1 to {most}")

    def load(self, name: str, sampling: str, **public: int | None) -> data.Dataset:
        """Loads a data set.

        Args:
          name: of a published one, or the path of an .npz or .csv file.
          sampling: "fixed" or "poisson".
          **public: numbers of a file that is not --dataset, instead of the flags'.

        Raises:
          ValueError: for a name or file that cannot be loaded.
        """
        own = derived_flags.given(self._of_data.get(_kind(name), []))
        if _kind(name) in _FILES.values():
            if public:
                own = public | {"classes": own.get("classes")}
            # Replacing a record must not move it from training to validation.
            own["identified_by"] = "slot" if sampling == "fixed" else None
        elif own:
            own = {"settings": own}
        try:
            return data.load(
                name, data_dir=self.data_dir.value, cache_dir=self.cache_dir.value, **own
            )
        except ValueError as refusal:
            # What Python is told to pass is a flag here, unless the number came from elsewhere.
            words = str(refusal)
            for option in self._of_data.get(_kind(name), self._of_data[OWN_FILE]):
                if option.name not in public:
                    words = words.replace(f"pass {option.name}=,", f"pass --{option.flag}=,")
            if words == str(refusal):
                raise
            raise ValueError(words) from refusal

    def featured(self, records: features.Held) -> features.Held:
        """The records with --features for inputs; as they are without.

        Raises:
          ValueError: for records that have no such features.
        """
        name = self.features.value
        return records if name is None else data.with_features(records, name)

    def task(self, classes: int, train: data.Split, scored: data.Split) -> tuning.Task:
        """What is learned: --model on `train`, judged on `scored`.

        Raises:
          ValueError: for --widths that are no whole numbers, or a model that does not fit the data.
        """
        module = models.build_module(self.model.value, classes, widths=_WIDTHS.value())
        loss = models.default_loss(self.model.value)
        task = tuning.classification(module, train, scored, loss=loss)
        if self.features.value is None:
            return task
        # Whoever is to use the model must know what to feed it.
        words = f"{task.description} on features {self.features.value}"
        return dataclasses.replace(task, description=words)

    def named_optimizer(
        self,
        schedule: str = schedules.CONSTANT,
        schedule_settings: Mapping[str, Any] | None = None,
    ) -> NamedOptimizer:
        """--optimizer with its own settings, and a schedule with its own."""
        kind = self.optimizer.value
        settings = derived_flags.given(self._of_optimizers[kind])
        return NamedOptimizer(kind, schedule, settings, schedule_settings or {})


_WIDTHS = derived_flags.Option("widths", "widths", int, "", None, listed=True)


@dataclasses.dataclass(frozen=True)
class NamedOptimizer:
    """An optimiser by its public name: hyperparameters -> optax transformation.

    Attributes:
      kind: a name in `training.OPTIMIZERS`.
      schedule: one of `training.SCHEDULES`, over a run's steps.
      settings: its own, by name.
      schedule_settings: the schedule's own, by name.
    """

    kind: str
    schedule: str = schedules.CONSTANT
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    schedule_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def describe(self) -> str:
        """What the record of a search says of it."""
        return f"{self} with {dict(self.settings)}" if self.settings else str(self)

    @property
    def description(self) -> dict[str, str]:
        """What a release says of it."""
        words = schedules.in_words(self.schedule, self.schedule_settings)
        own = {name: str(value) for name, value in self.settings.items()}
        return {"name": self.kind, "learning_rate_schedule": words, **own}

    def __call__(self, hyperparameters: Mapping[str, Any]) -> Any:
        """The optax transformation of one candidate; with a schedule reads `steps` too."""
        make = training.OPTIMIZERS[self.kind].make
        shape = schedules.shape_of(self.schedule, self.schedule_settings)
        return make(schedules.of_run(shape, hyperparameters), **self.settings)(hyperparameters)

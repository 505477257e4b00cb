"""The flags that name data, model and optimiser, shared by the binaries, and what they build.

A binary makes `DataFlags` once, with the words and defaults that are its own; the flags then belong
to that binary, as if it had defined them itself. Further settings of a data set, a file of your own
and an optimiser have flags made from their fields (`derived_flags`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from flax import linen as nn

from dpjax import data, models, training, tuning
from dpjax.commands import derived_flags
from dpjax.data import image_folder, source, tables, tfds_records
from dpjax.releases.release import json_bytes
from dpjax.training import schedules

flags.disclaim_key_flags()

LARGEST = {"public_size": 10**9, "classes": 10**5}
OWN_FILE, OWN_TABLE = "your own .npz", "your own .csv"
OWN_FOLDER, PREPARED = "folder:PATH", "tfds:NAME"
_FILES = {".npz": OWN_FILE, ".csv": OWN_TABLE}
_IN_LOAD = {"public_size", "size_bound", "classes", "target_range", "validation_public_size"}
_IN_LOAD |= {"schema", "test_table"}
"""Arguments of `data.load`; others are among its `settings`."""


def _kind(dataset: str) -> str:
    """Returns the kind of the user's own data, or the name of a published data set unchanged."""
    for kind in (OWN_FOLDER, PREPARED):
        if dataset.startswith(kind.partition(":")[0] + ":"):
            return kind
    return _FILES.get(os.path.splitext(dataset)[1], dataset)


class DataFlags:
    """The flags of data, model and optimiser, and what is built from their values.

    They are defined for the module that makes the object.
    """

    def __init__(
        self,
        *,
        dataset_help: str,
        widths: Sequence[str],
        optimizer: str,
        model: str | None = "logistic_regression",
    ):
        """Defines the flags, with these defaults.

        If `model` is None, the model is linear, or for a .csv table the public default's.

        {names} in `dataset_help` stands for the names of published data sets.
        """
        of_file = derived_flags.options_of(
            data.load_arrays, "path", "identified_by", documented=data.from_arrays
        )
        of_table = derived_flags.options_of(data.load_table, "path", "identified_by")
        self._of_data = {
            OWN_FILE: of_file,
            OWN_TABLE: of_table,
            OWN_FOLDER: derived_flags.options_of(image_folder.load_folder, "path", "identified_by"),
            PREPARED: derived_flags.options_of(
                tfds_records.load_tfds, "name", "data_dir", "identified_by"
            ),
        } | {name: derived_flags.options_of(one.encode) for name, one in source.SOURCES.items()}
        derived_flags.define(self._of_data, "--dataset=")
        dataset_help = dataset_help.format(names=", ".join(data.NAMES))
        self.dataset = flags.DEFINE_string("dataset", "digits", dataset_help)
        self.data_dir = flags.DEFINE_string(
            "data_dir", None, "Folder where the files of data sets are looked for."
        )
        self.cache_dir = flags.DEFINE_string(
            "cache_dir", None, "Where downloads go, if not into --data_dir."
        )
        words = "The model"
        if model is None:
            words += (
                "; by default logistic_regression, of a .csv table that or a net, by --public_size"
            )
        self.model = flags.DEFINE_enum("model", model, models.NAMES, f"{words}.")
        self.widths = flags.DEFINE_list("widths", widths, "Widths of an mlp's hidden layers.")
        own = {one: derived_flags.options_of(by.make) for one, by in training.OPTIMIZERS.items()}
        self.optimizer = derived_flags.OneOf("optimizer", own, optimizer, "Optimiser.")

    @property
    def name(self) -> str:
        """Returns the data set's name; for a path its last part, without the ending."""
        whole = self.dataset.value
        if _kind(whole) == OWN_FOLDER:
            return os.path.basename(os.path.abspath(whole.partition(":")[2])) or "root"
        if _kind(whole) == PREPARED:
            whole = whole.split(":")[1]  # Without the version.
        return os.path.splitext(os.path.basename(whole))[0]

    def refuse_unread(self, *names: str) -> None:
        """Refuses flags of other data sets than `names`, another optimiser or another model."""
        for name in filter(None, names):
            if name not in data.NAMES and _kind(name) not in self._of_data:
                raise ValueError(
                    f"{name} is not a known data set: pass an .npz file (np.savez with inputs= "
                    "and labels=), a .csv table with its --schema, folder:PATH, tfds:NAME, or one "
                    f"of {', '.join(data.NAMES)} (in a checkout python -m experiments.tune knows "
                    "more)"
                )
        for by_owner, chosen, of in (
            (self._of_data, {_kind(name) for name in names}, "dataset"),
            (self.optimizer.options, {self.optimizer.value}, "optimizer"),
            ({"mlp": [_WIDTHS]}, {self.model.value}, "model"),
        ):
            derived_flags.refuse_others(derived_flags.owners_of(by_owner), chosen, of)
        for name, most in LARGEST.items():
            value = flags.FLAGS[name].value
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"--{name}={value}: pass a whole number from 1 to {most}")

    def load(self, name: str, sampling: str, **public: int | None) -> data.Dataset:
        """Loads a published data set by its name, or an .npz or .csv file by its path.

        `public` replaces the numbers of the flags, for a file that is not --dataset.
        """
        own = derived_flags.given(self._of_data.get(_kind(name), []))
        if _kind(name) in (*_FILES.values(), OWN_FOLDER, PREPARED):
            if public:
                kept = {one: value for one, value in own.items() if one not in _IN_LOAD}
                own = kept | public | {"classes": own.get("classes")}
            # Replacing a record must not move it from training to validation.
            own["identified_by"] = "slot" if sampling == "fixed" else None
            settings = {one: own.pop(one) for one in {*own} - _IN_LOAD - {"identified_by"}}
        else:
            settings, own = own, {}
        # Errors name an argument as its flag, unless its value came from elsewhere.
        options = self._of_data.get(_kind(name), self._of_data[OWN_FILE])
        names = {one.name: one.flag for one in options if one.name not in public}
        with derived_flags.named_as_flags(names):
            return data.load(
                name,
                data_dir=self.data_dir.value,
                cache_dir=self.cache_dir.value,
                settings=settings,
                **own,
            )

    def of_own_table(self) -> dict[str, Any]:
        """Returns the arguments of `data.load_table`; refuses a --dataset that is no .csv table."""
        if _kind(self.dataset.value) != OWN_TABLE:
            raise ValueError("--user_column needs a .csv table: pass the table as --dataset")
        options = self._of_data[OWN_TABLE]
        missing = [one.flag for one in options if one.flag in ("schema", "public_size")]
        if any(flags.FLAGS[flag].value is None for flag in missing):
            raise ValueError("--user_column needs --schema and --public_size, a number of users")
        return derived_flags.given(options)

    def schema(self) -> Mapping[str, Any] | None:
        """Returns the content of a .csv table's --schema file; None for other data."""
        if _kind(self.dataset.value) != OWN_TABLE or flags.FLAGS.schema is None:
            return None
        found = tables.stated(flags.FLAGS.schema)
        json_bytes(found)  # Raises now, not when it is written, after the draw.
        return found

    def module(self, classes: int | None, public_size: int) -> nn.Module:
        """Returns the net of --model, with one output for a regression."""
        name, outputs = self.model.value or "logistic_regression", classes or 2
        module = models.build_module(name, outputs, widths=_WIDTHS.value())
        if self.model.value is None and _kind(self.dataset.value) == OWN_TABLE:
            module = tuning.public_model(public_size, outputs)
        return module if classes else module.clone(classes=1)

    def task(
        self,
        classes: int | None,
        train: data.Split | tuning.Records,
        scored: data.Split | tuning.Records,
        **judged: Any,
    ) -> tuning.Task:
        """Returns the task: to train --model on `train` and judge it on `scored`.

        `judged` are further arguments of `tuning.classification` or of `tuning.regression`.
        """
        module, name = self.module(classes, train.public_size), self.model.value
        if classes:
            loss = models.default_loss(name or "logistic_regression")
            return tuning.classification(module, train, scored, loss=loss, **judged)
        if "target_range" not in judged:
            raise ValueError(f"{self.dataset.value} is a regression: pass it to dpjax tune")
        if name == "linear_svm":
            raise ValueError("--model=linear_svm predicts classes: pass logistic_regression or mlp")
        # `dpjax predict` finds the net by the name of its class.
        words = " ".join(repr(module).replace("# attributes", "").split())
        words = words.replace("( ", "(").replace(" )", ")")
        linear = "linear regression, " if type(module) is models.LogisticRegression else ""
        judged["description"] = (
            f"{linear}{words}; a record scores 1 - absolute error / {judged['error_scale']:g}, in "
            "the target's units, not below 0"
        )
        return tuning.regression(module, train, scored, **judged)

    def named_optimizer(
        self, schedule: str = schedules.CONSTANT, schedule_settings: Mapping[str, Any] | None = None
    ) -> NamedOptimizer:
        """Returns --optimizer with its own settings, and a schedule with its own."""
        settings = self.optimizer.given()
        return NamedOptimizer(self.optimizer.value, schedule, settings, schedule_settings or {})


_WIDTHS = derived_flags.Option("widths", "widths", int, "", None, listed=True)


@dataclasses.dataclass(frozen=True)
class NamedOptimizer:
    """Makes an optax transformation from hyperparameters, and has a name for releases.

    `kind` is a name in `training.OPTIMIZERS`, `schedule` one in `training.SCHEDULES`.
    """

    kind: str
    schedule: str = schedules.CONSTANT
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    schedule_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def describe(self) -> str:
        """Returns its name and settings, for the record of a search."""
        return f"{self} with {dict(self.settings)}" if self.settings else str(self)

    @property
    def description(self) -> dict[str, str]:
        """Returns its name, schedule and settings, for a release."""
        words = schedules.in_words(self.schedule, self.schedule_settings)
        own = {name: str(value) for name, value in self.settings.items()}
        return {"name": self.kind, "learning_rate_schedule": words, **own}

    def __call__(self, hyperparameters: Mapping[str, Any]) -> Any:
        """Returns one candidate's transformation; a schedule reads the hyperparameter `steps`."""
        make = training.OPTIMIZERS[self.kind].make
        shape = schedules.shape_of(self.schedule, self.schedule_settings)
        return make(schedules.of_run(shape, hyperparameters), **self.settings)(hyperparameters)

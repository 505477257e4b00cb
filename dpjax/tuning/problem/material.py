"""What a job trains on and with: records and code, which no plan and no price sees."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

from dpjax import training
from dpjax.array_files import fingerprint
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.problem import inspection
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task, check_score


@dataclasses.dataclass(frozen=True)
class Material:
    """Holds a task with its records, and what trains on them; `Problem` has its public numbers.

    Attributes:
      task: the model, its loss and score, and the records.
      optimizer: hyperparameters -> optax transformation.
      names: of the hyperparameters that candidates have.
    """

    task: Task
    optimizer: Optimizer
    names: tuple[str, ...]

    @classmethod
    def of(cls, task: Task, space: Space, optimizer: Optimizer | None = None) -> Material:
        """Returns the material of `tuning.tune`'s arguments; `check` is what inspects it."""
        used = training.momentum() if optimizer is None else optimizer
        return cls(task, used, tuple(sorted(space.parameters)))

    def check(self) -> None:
        """Refuses, or warns of, a task or optimiser that candidates cannot be trained with."""
        check_score(self.task)
        inspection.check_loss(self.task)
        inspection.refuse_unread(self.task, self.optimizer, self.names)
        inspection.warn_of_records(self.task, inspection.warn_of_loss(self.task))

    def scored_on_training(self) -> Material:
        """Returns it with the training records in the place of the validation records."""
        # Not made anew: a task refuses parts that share records, as these do on purpose. If one is
        # made of it later, identifiers must not be compared: a user is in both parts.
        task = copy.copy(self.task)
        validation = dataclasses.replace(task.train, identifiers=None)
        object.__setattr__(task, "validation", validation)
        return dataclasses.replace(self, task=task)

    def words(self, sampling: str) -> dict[str, Any]:
        """Returns what is trained, for `statements.written`, without reading any record."""
        records = self.task.train
        return {
            "model": self.task.description,
            "optimizer": inspection.of_optimizer(self.optimizer) | self._released,
            "trained_parameters": inspection.trained_parameters(self.task),
            "training_records": {
                "public_size": records.public_size,
                "size_bound": records.size_bound,
                # Under replace-one the number is public: no neighbour has another.
                "number": records.number if sampling == "fixed" else None,
                **(self.task.users.numbers if self.task.users else {}),
            },
            "targets": self.task.targets.stated if self.task.targets else {},
        }

    @property
    def _released(self) -> dict[str, str]:
        """Returns which average of the iterates is released; nothing where it is the last one."""
        average = self.task.average
        return {} if average is None else {"released": average.words}

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Returns all that training and scores depend on beside the settings, for `Job.once`.

        Once: a tuner's folder and that of its runs are bound to it, and it reads every record.
        """
        parts = (self.task.train, self.task.validation)
        given = {*self.names, *inspection.GIVEN_TO_EVERY_RUN}
        return inspection.programs(self.task, self.optimizer, given) | {
            "model": self.task.description,
            "optimizer's name": inspection.of_optimizer(self.optimizer) | self._released,
            "trained parameters": inspection.trained_parameters(self.task),
            "records": fingerprint([part.arrays for part in parts]),
            "identifiers": fingerprint(self.task.train.identifiers),
            "numbers of records": [[part.public_size, part.size_bound] for part in parts],
        }

"""The tuning procedures: `tune(task, space, tuner)` runs any of them and ends in a release.

| tuner | paper |
|---|---|
| `RandomRepetitions` | Papernot & Steinke, ICLR 2022 |
| `Exponential` | McSherry & Talwar, FOCS 2007, on the utilities of Ding & Wu 2022 |
| `Doubling` | Ding & Wu, 2022 |
| `ThresholdStopping` | Liu & Talwar, STOC 2019; Papernot & Steinke, Appendix C |
| `Untuned` | none: one run with a public default, what the others have to beat |
"""

import importlib
import warnings
from typing import Any

from dpjax.releases.release import Release
from dpjax.releases.verification import NotVerified, verify_release
from dpjax.tuning.job import Job
from dpjax.tuning.problem.fitting_law import fitting_law
from dpjax.tuning.problem.log_normal import LogNormal
from dpjax.tuning.problem.problem import RunOptions
from dpjax.tuning.problem.public_defaults import (
    PublicDefaults,
    adam_rate,
    public_defaults,
    public_model,
)
from dpjax.tuning.problem.ready_tasks import classification, multi_label, next_token, regression
from dpjax.tuning.problem.space import (
    Choice,
    LogUniform,
    Space,
    Uniform,
    parse_space,
)
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.tuner import Result, Tuner, register_tuner, registered_tuners, tune
from dpjax.tuning.tuners.doubling import Doubling
from dpjax.tuning.tuners.exponential import Exponential
from dpjax.tuning.tuners.random_repetitions import (
    PrivateRuns,
    RandomRepetitions,
    ThresholdStopping,
)
from dpjax.tuning.tuners.untuned import Untuned

__all__ = [
    "Choice",
    "Doubling",
    "Exponential",
    "Job",
    "LogUniform",
    "NotVerified",
    "PrivateRuns",
    "RandomRepetitions",
    "Records",
    "Release",
    "Result",
    "RunOptions",
    "Space",
    "Task",
    "ThresholdStopping",
    "Tuner",
    "Uniform",
    "Untuned",
    "adam_rate",
    "classification",
    "fitting_law",
    "multi_label",
    "next_token",
    "public_defaults",
    "public_model",
    "register_tuner",
    "regression",
    "tune",
    "verify_release",
]

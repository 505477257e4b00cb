"""The tuning procedures: each composes training and accounting and ends in a release.

`tune(task, space, tuner)` runs any of them; each has a function of its own too.

| procedure | paper |
|---|---|
| `random_repetitions` | Papernot & Steinke, ICLR 2022 |
| `exponential` | McSherry & Talwar, FOCS 2007, on the utilities of Ding & Wu 2022 |
| `permute_and_flip` | McKenna & Sheldon, NeurIPS 2020, on the same utilities |
| `doubling` | Ding & Wu, 2022 |
| `extrapolation` | Panda et al., ICML 2024 |
| `threshold_stopping` | Liu & Talwar, STOC 2019; Papernot & Steinke, Appendix C |
| `subset_tuning` | Koskela & Kulkarni, NeurIPS 2023 |
| `untuned` | none: one run with a public default, what the others have to beat |
| `pareto.search`; its front is NOT private | Avent et al. 2020 (DPareto) |
"""

from dpjax.tuning import pareto
from dpjax.tuning.job import Job
from dpjax.tuning.problem.log_normal import LogNormal
from dpjax.tuning.problem.public_defaults import (
    AdamBcDefaults,
    PublicDefaults,
    adam_bc_defaults,
    public_defaults,
)
from dpjax.tuning.problem.ready_tasks import classification, multi_label, next_token, regression
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import (
    Choice,
    LogUniform,
    Space,
    Uniform,
    parse_space,
    read_space,
)
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.release import Release
from dpjax.tuning.tuner import Result, register_tuner, registered_tuners, tune
from dpjax.tuning.tuners.doubling import Doubling, doubling
from dpjax.tuning.tuners.exponential import Exponential, exponential
from dpjax.tuning.tuners.extrapolation import Extrapolation, extrapolation
from dpjax.tuning.tuners.permute_and_flip import PermuteAndFlip, permute_and_flip
from dpjax.tuning.tuners.random_repetitions import (
    DEFAULT_REPETITIONS,
    RandomRepetitions,
    random_repetitions,
)
from dpjax.tuning.tuners.subset_tuning import SubsetTuning, subset_tuning
from dpjax.tuning.tuners.threshold_stopping import ThresholdStopping, threshold_stopping
from dpjax.tuning.tuners.untuned import Untuned, untuned

__all__ = [
    "DEFAULT_REPETITIONS",
    "AdamBcDefaults",
    "Choice",
    "Doubling",
    "Exponential",
    "Extrapolation",
    "Job",
    "LogNormal",
    "LogUniform",
    "PermuteAndFlip",
    "PublicDefaults",
    "RandomRepetitions",
    "Records",
    "Release",
    "Result",
    "RunOptions",
    "Space",
    "SubsetTuning",
    "Task",
    "ThresholdStopping",
    "Uniform",
    "Untuned",
    "adam_bc_defaults",
    "classification",
    "doubling",
    "exponential",
    "extrapolation",
    "multi_label",
    "next_token",
    "pareto",
    "public_defaults",
    "parse_space",
    "permute_and_flip",
    "random_repetitions",
    "read_space",
    "register_tuner",
    "registered_tuners",
    "regression",
    "subset_tuning",
    "threshold_stopping",
    "tune",
    "untuned",
]

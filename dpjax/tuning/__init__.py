"""The tuning procedures: each composes training and accounting and ends in a release.

| procedure | paper |
|---|---|
| `random_repetitions` | Papernot & Steinke, ICLR 2022 |
| `exponential` | McSherry & Talwar, FOCS 2007, on the utilities of Ding & Wu 2022 |
| `doubling` | Ding & Wu, 2022 |
| `threshold_stopping` | Liu & Talwar, STOC 2019; Papernot & Steinke, Appendix C |
| `voting`: `VoteSettings`, `train_clients` | Liebenow, Peinemann & Mohammadi 2025 (DP-HYPE) |
| `AveragingSettings`, `averaging` | McMahan et al. 2017; Kairouz, Liu & Steinke 2021 |
| `pareto.search`; its front is NOT private | Avent et al. 2020 (DPareto) |
"""

from dpjax.tuning import averaging, pareto, voting
from dpjax.tuning.averaging import AveragingPlan, AveragingSettings
from dpjax.tuning.candidates import (
    Choice,
    LogUniform,
    Space,
    Uniform,
    parse_space,
    read_space,
)
from dpjax.tuning.doubling import doubling
from dpjax.tuning.exponential import exponential
from dpjax.tuning.job import Job
from dpjax.tuning.random_repetitions import DEFAULT_REPETITIONS, random_repetitions
from dpjax.tuning.release import Release
from dpjax.tuning.running import Result
from dpjax.tuning.task import Records, Task, classification
from dpjax.tuning.threshold_stopping import threshold_stopping
from dpjax.tuning.voting import VoteAborted, VotePlan, VoteSettings, train_clients

__all__ = [
    "DEFAULT_REPETITIONS",
    "AveragingPlan",
    "AveragingSettings",
    "Choice",
    "Job",
    "LogUniform",
    "Records",
    "Release",
    "Result",
    "Space",
    "Task",
    "Uniform",
    "VoteAborted",
    "VotePlan",
    "VoteSettings",
    "averaging",
    "classification",
    "doubling",
    "exponential",
    "pareto",
    "parse_space",
    "random_repetitions",
    "read_space",
    "threshold_stopping",
    "train_clients",
    "voting",
]

"""Private training of many candidates at once, in JAX float32; knows nothing of selection."""

from dpjax.randomness.keys import candidate_keys, stream
from dpjax.randomness.noise import add_gaussian_noise
from dpjax.training.augmentations import augmented
from dpjax.training.averages import Averages, ExponentialAverage, TailAverage
from dpjax.training.clipping.clipped_grad import clipped_grad
from dpjax.training.dp_sgd import TrainConfig, make_train
from dpjax.training.lots.sampling import FixedLots, PoissonLots
from dpjax.training.micro_batches import MicroBatchSize
from dpjax.training.micro_batches import checked as checked_micro_batch_size
from dpjax.training.optimizers import (
    OPTIMIZERS,
    adam,
    adam_bc,
    adamw,
    momentum,
    register_optimizer,
    sgd,
)
from dpjax.training.schedules import SCHEDULES, register_schedule, scheduled
from dpjax.training.sweep.checkpoints import Checkpoints
from dpjax.training.sweep.mixed import mixed_sweep
from dpjax.training.sweep.placement import NAMES as placement_names
from dpjax.training.sweep.placement import (
    Placement,
    Trial,
    fastest_placement,
    named_placement,
    placement_options,
)
from dpjax.training.sweep.sweep import sweep
from dpjax.training.users import UserRecords, per_user

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Averages",
    "Checkpoints",
    "ExponentialAverage",
    "FixedLots",
    "MicroBatchSize",
    "Placement",
    "PoissonLots",
    "TailAverage",
    "TrainConfig",
    "Trial",
    "UserRecords",
    "adam",
    "adam_bc",
    "adamw",
    "add_gaussian_noise",
    "augmented",
    "candidate_keys",
    "checked_micro_batch_size",
    "clipped_grad",
    "fastest_placement",
    "make_train",
    "mixed_sweep",
    "momentum",
    "named_placement",
    "per_user",
    "placement_names",
    "placement_options",
    "register_optimizer",
    "register_schedule",
    "scheduled",
    "sgd",
    "stream",
    "sweep",
]

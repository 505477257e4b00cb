"""Private training of many candidates at once, in JAX float32; it knows nothing of selection."""

from dpjax.randomness.keys import candidate_keys, stream
from dpjax.randomness.noise import add_gaussian_noise
from dpjax.training.averages import ExponentialAverage, TailAverage
from dpjax.training.balls_in_bins import BallsInBinsLots
from dpjax.training.clipping.clip_rules import (
    CLIP_RULES,
    AutomaticClipping,
    ClipRule,
    GlobalClipping,
    GroupedClipping,
    PerLeafClipping,
    register_clip_rule,
)
from dpjax.training.clipping.clip_rules import checked_rule as checked_clip_rule
from dpjax.training.clipping.clipped_grad import clipped_grad
from dpjax.training.compilation import jit
from dpjax.training.contribution_check import Checked, refuse_long
from dpjax.training.correlated_noise import BandedNoise
from dpjax.training.dp_sgd import TrainConfig, bytes_of_step, make_train
from dpjax.training.gradient_scales import public_scale, scaled_gradient
from dpjax.training.lots import CyclicPoissonLots, FixedLots, PoissonLots
from dpjax.training.mesh import LotMesh
from dpjax.training.micro_batches import MicroBatchSize
from dpjax.training.micro_batches import checked as checked_micro_batch_size
from dpjax.training.optimizers import (
    OPTIMIZERS,
    adam,
    adam_bc,
    adam_scaled,
    adamw,
    momentum,
    register_optimizer,
    sgd,
)
from dpjax.training.places import padded
from dpjax.training.schedules import SCHEDULES, register_schedule, scheduled
from dpjax.training.stages import Stages
from dpjax.training.sweep.checkpoints import Checkpoints
from dpjax.training.sweep.placement import NAMES as placement_names
from dpjax.training.sweep.placement import (
    Placement,
    mesh_named,
    named_placement,
    spreads_runs,
)
from dpjax.training.sweep.sweep import mixed_sweep, sweep
from dpjax.training.users import UserRecords, per_user

__all__ = [
    "AutomaticClipping",
    "BallsInBinsLots",
    "BandedNoise",
    "ClipRule",
    "CyclicPoissonLots",
    "ExponentialAverage",
    "FixedLots",
    "LotMesh",
    "GlobalClipping",
    "GroupedClipping",
    "PerLeafClipping",
    "PoissonLots",
    "Stages",
    "TailAverage",
    "TrainConfig",
    "adam",
    "adam_bc",
    "adam_scaled",
    "adamw",
    "candidate_keys",
    "clipped_grad",
    "make_train",
    "momentum",
    "padded",
    "per_user",
    "public_scale",
    "register_clip_rule",
    "register_optimizer",
    "scaled_gradient",
    "scheduled",
    "sgd",
    "sweep",
]

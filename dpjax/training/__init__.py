"""Private training of many candidates at once, in JAX float32; knows nothing of selection."""

from dpjax.training.clipping import clipped_grad
from dpjax.training.dp_sgd import TrainConfig, make_train
from dpjax.training.keys import candidate_keys, stream
from dpjax.training.noise import add_gaussian_noise
from dpjax.training.optimizers import adam, momentum, sgd
from dpjax.training.sampling import FixedLots, PoissonLots
from dpjax.training.slots import mixed_sweep
from dpjax.training.sweep import sweep

__all__ = [
    "FixedLots",
    "PoissonLots",
    "TrainConfig",
    "adam",
    "add_gaussian_noise",
    "candidate_keys",
    "clipped_grad",
    "make_train",
    "mixed_sweep",
    "momentum",
    "sgd",
    "stream",
    "sweep",
]

"""Flax Linen models, losses, and the adapter that turns any Flax model into a pair of functions."""

from dpjax.models.functional import FunctionalModel, functional
from dpjax.models.losses import cross_entropy, hinge
from dpjax.models.nets import (
    MLP,
    NAMES,
    ConvBlocksNet,
    ConvPoolNet,
    LinearSVM,
    LogisticRegression,
    PatchConv,
    build_module,
    default_loss,
    dropout,
)

__all__ = ["MLP", "LogisticRegression", "cross_entropy", "dropout"]

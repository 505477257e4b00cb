"""Flax Linen models, losses, and the adapter that turns any Flax model into a pair of functions."""

from dpjax.models.convolutional import PatchConv
from dpjax.models.dropout import dropout
from dpjax.models.functional import FunctionalModel, functional
from dpjax.models.linear import MLP, LinearSVM, LogisticRegression
from dpjax.models.losses import cross_entropy, hinge
from dpjax.models.pooled_convolutions import ConvBlocksNet, ConvPoolNet
from dpjax.models.registry import NAMES, build, build_module, default_loss

__all__ = [
    "MLP",
    "NAMES",
    "ConvBlocksNet",
    "ConvPoolNet",
    "FunctionalModel",
    "LinearSVM",
    "LogisticRegression",
    "PatchConv",
    "build",
    "build_module",
    "cross_entropy",
    "default_loss",
    "dropout",
    "functional",
    "hinge",
]

"""Tests of this folder need the extra `federated`; without it they are skipped."""

import importlib.util
import logging

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _quiet_flower():
    """Flower logs every stage of every test."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)

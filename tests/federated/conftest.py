"""Tests of this folder need the extra `federated`; without it most are skipped."""

import importlib.util
import logging
import pathlib

import pytest
from small_federations import Federation

from dpjax.releases import certificates  # noqa: F401 (loaded, so that the first test finds no proofs)

WITHOUT_FLOWER = ("test_averaging.py", "test_local_training.py", "test_voting.py")
"""Tests of what federates in one process."""

collect_ignore = [
    path.name
    for path in pathlib.Path(__file__).parent.glob("test_*.py")
    if path.name not in WITHOUT_FLOWER and not importlib.util.find_spec("flwr")
]


@pytest.fixture(autouse=True)
def _quiet_flower():
    """Flower logs every stage of every test."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.fixture
def federation():
    """See `Federation`."""
    return Federation()

"""Without the extra dpjax works, and dpjax.federated.flower says what to install."""

import pytest
from processes import python

from dpjax.federated.flower import internals

_HIDE_FLOWER = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "flwr" else find(name, *rest)
import dpjax.accounting
from dpjax import federated
federated.VoteSettings(10, 8).plan(), federated.AveragingSettings
assert "flwr" not in sys.modules
try:
    import dpjax.federated.flower
except ImportError as error:
    print(error)
"""
_LIGHT = """
import os, sys
before = dict(os.environ)
from dpjax import federated
federated.make_client_app(federated.records_in_folder)
print(sorted({"jax", "scipy", "sklearn", "ray"} & set(sys.modules)), dict(os.environ) == before)
"""


def _printed(program):
    done = python("-W", "error", "-c", program, check=True)
    return done.stdout.strip()


def test_without_flower_one_clear_line():
    assert _printed(_HIDE_FLOWER) == (
        "dpjax.federated.flower runs on Flower, which is not installed: pip install -e "
        "'.[federated]' in dpjax's folder"
    )


def test_a_clients_process_imports_no_jax_and_sets_no_environment():
    assert _printed(_LIGHT) == "[] True"


def test_untested_versions_of_flower_are_refused():
    internals.check_version("1.41.7")
    for version in ("1.40.0", "1.42.0", "2.41.0"):
        with pytest.raises(ImportError, match=f"tested with 1.41, this is {version}"):
            internals.check_version(version)

"""What a command does not need is not imported before it is asked for."""

from processes import python

_ASK = """
import gc, sys, time
import dpjax.pareto, experiments.tune
assert gc.isenabled()
names = sys.argv[1:]
print([name for name in names if name in sys.modules])
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
print(time.process_time())
"""
LATER = (
    *("matplotlib", "threadpoolctl", "sklearn", "dp_accounting", "pandas", "PIL"),
    *("scipy.signal", "scipy.stats", "scipy.optimize", "tensorflow_datasets", "orbax"),
    *("torch", "optuna", "flwr", "jax_privacy", "flax.nnx", "urllib.request"),
)


def test_the_command_that_tunes_imports_little_and_touches_no_device():
    done = python("-c", _ASK, *LATER, check=True)
    loaded, backends, seconds = done.stdout.splitlines()
    assert loaded == "[]"
    assert backends == "False"
    # Under 1.5 s alone on a core; what a slow or shared machine adds is no news.
    assert float(seconds) < 15.0

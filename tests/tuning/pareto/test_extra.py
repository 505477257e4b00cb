"""Without the extra everything but the search works, and the search says what to install."""

import subprocess
import sys

_WITHOUT = """
import importlib.util, sys
hidden = ("moocore",)
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)
sys.modules.update(dict.fromkeys(hidden))  # Importing them fails.

from absl import flags
from dpjax.tuning import pareto
from dpjax.tuning.pareto import fronts
from dpjax.commands import command_line
from experiments import pareto as binary

domain = pareto.parse_domain(["clip_norm=log(0.1,1)"])
for call in (lambda: pareto.search(domain, None, None), lambda: fronts.front([(1, 0.5)])):
    try:
        call()
    except ImportError as error:
        print(error)
flags.FLAGS(["pareto"])
sys.exit(command_line.guarded(binary.main))
"""
_WITH = """
import sys
import experiments.pareto
print(sorted({"moocore", "threadpoolctl"} & set(sys.modules)))
"""


def _run(program):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True
    )


def test_without_the_extra_one_clear_line_before_anything_is_loaded():
    line = (
        "dpjax.tuning.pareto runs on moocore, which is not installed: pip install -e "
        "'.[pareto]' in dpjax's folder\n"
    )
    done = _run(_WITHOUT)
    assert done.stdout == 2 * line, done.stderr
    assert (done.returncode, done.stderr) == (2, f"error: {line}")


def test_what_only_a_search_needs_is_not_imported_before_it():
    assert _run(_WITH).stdout == "[]\n"

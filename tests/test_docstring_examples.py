"""Every public name has an example in its docstring, and examples give what they say they give."""

import doctest
import importlib
import inspect
import re
import types

import pytest

PACKAGES = (
    "accounting",
    "auditing",
    "bridges",
    "data",
    "federated",
    "models",
    "training",
    "tuning",
    "tuning.pareto",
)
WITHOUT = {
    "accounting": "RepetitionLaw law_family mechanism",
    "auditing": "Audit Released Seen audit executions one_run_lower_bound searched_run_executions",
    "bridges": "ContradictionError Outcome",
    "data": "DataCorruptedError FeatureMap PublishedFile Source register register_features",
    "federated": """
        Averaging AveragingAborted AveragingPlan AveragingSettings Election InProcessGrid
        Outcome Spending SumAborted SumRules VoteAborted make_client_app make_server_app
        parts_of_data_set records_in_folder run_election run_in_process run_in_ray run_rounds
        save_outcome secure_sum_only statement
    """,
    "models": "AllConvNet ConvBlocksNet ConvPoolNet LinearSVM PatchConv build",
    "training": """
        ClipRule Trial UserRecords bytes_of_step fastest_placement mixed_sweep named_placement
        placement_by_rule register_optimizer register_schedule sweep
    """,
    "tuning": """
        Release Result adaptive_proposals chosen_iterate doubling exponential extrapolation
        permute_and_flip register_tuner subset_tuning threshold_stopping tune
    """,
    "tuning.pareto": """
        Evaluation FreshFront Law Laws SearchRecord Suggestion TrainedAccuracy UniformOver
        fitted front_by_means grid reevaluate suggest
    """,
}
"""Names without an example, to become fewer. A law, a mechanism and a tuner of one's own are run by
`tests/conformance/test_own_*.py`; a whole tuning, a search or a federation takes seconds each."""


def public(package):
    """Functions and classes that a package names in its `__all__`."""
    module = importlib.import_module(f"dpjax.{package}")
    things = {name: getattr(module, name) for name in module.__all__}
    return {
        name: thing
        for name, thing in things.items()
        if inspect.isclass(thing) or isinstance(thing, types.FunctionType)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_examples(package, capsys, tmp_path, monkeypatch):
    if package == "federated":
        pytest.importorskip("flwr", reason="needs the federated extra")
    monkeypatch.chdir(tmp_path)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    without, lacking = set(WITHOUT.get(package, "").split()), set()
    for name, thing in public(package).items():
        text = inspect.cleandoc(thing.__doc__ or "")
        blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        if ">>>" in text:
            for test in finder.find(thing, name, globs={}):
                if test.examples:
                    runner.run(test)
        elif name in without or not blocks:
            lacking.add(name)
        else:
            exec(compile("".join(blocks), f"the example of {name}", "exec"), {})
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out
    # Shrink the list; a new name comes with an example.
    assert lacking == without

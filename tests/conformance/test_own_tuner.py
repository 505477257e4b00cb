"""A tuner in one file of a package of its own: priced, run, released, verified, audited.

It has a setting that is a list, and asks for one run after the other. Nothing of the library is
edited, and nothing is imported but public names; its flags come from its fields.
"""

import ast
import importlib
import json
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import tiny_tuners

from dpjax import accounting, auditing, certificate, tuning
from dpjax.releases import release, verification
from dpjax.tuning import steps

SOURCE = pathlib.Path(__file__).parent / "own_tuner.py"
RUN = tuning.RunOptions(lot_size=16, steps=2)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The module, in a package that is nowhere near the library."""
    folder = tmp_path_factory.mktemp("own") / "own_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "grid.py").write_text(SOURCE.read_text())
    sys.path.insert(0, str(folder.parent))
    try:
        yield importlib.import_module("own_package.grid")
    finally:
        sys.path.remove(str(folder.parent))


def test_it_imports_public_names_alone(own):
    known = {"dpjax": None, "dpjax.tuning": set(tuning.__all__) | {"steps"}}
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("dpjax"):
            assert (
                known[node.module] is None or {one.name for one in node.names} <= known[node.module]
            )
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            for name, module in (("tuning", tuning), ("steps", steps), ("accounting", accounting)):
                assert node.value.id != name or node.attr in module.__all__


def test_it_is_priced_run_released_verified_and_proved(own, task, tuned, statement_of):
    result = tuned(task, own.Grid((0.05, 0.5)), epsilon=3.0, run=RUN, delta=1e-5)
    assert result.curator.number_of_candidates == 2
    assert result.curator.hyperparameters["learning_rate"].tolist() == [0.05, 0.5]
    assert result.curator.winner == np.argmax(result.curator.scores)
    chosen = result.release.hyperparameters["learning_rate"]
    assert chosen == (0.05, 0.5)[result.curator.winner]
    assert 2.9 < result.guarantee.epsilon(1e-5) <= 3.0
    # It costs what two trainings cost.
    one = result.run_guarantee
    assert result.guarantee.epsilon(1e-5) == accounting.compose(one, one).epsilon(1e-5)
    path = statement_of(result)
    assert verification.verify_release(path).epsilon <= 3.0
    claim = json.loads(path.read_text())
    assert claim["selection"] == {"rule": own.RULE, "values": [0.05, 0.5]}
    with pytest.raises(certificate.Unproved, match="by the rule .* are beyond this program"):
        certificate.check(str(path.parent))


def test_another_value_than_the_listed_is_not_verified(own, task, tuned, tmp_path):
    result = tuned(task, own.Grid((0.05, 0.5)))
    forged = dict(result.release.hyperparameters) | {"learning_rate": 0.1}
    tuning.Release(result.release.params, forged, result.release.statement).save(tmp_path / "a")
    with pytest.raises(verification.NotVerified, match="cannot have released"):
        verification.verify_release(tmp_path / "a")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["values"])', '["values"][:1])', "probabilities is not what"),
        ('"rule": RULE, "values": list(self.values)', '"rule": RULE', "'values'"),
        (
            "        return super().plan(",
            "        assert problem.epsilon, 'a target'\n        return super().plan(",
            "a target",
        ),
    ],
)
def test_a_release_that_could_not_be_verified_is_refused_before_the_draw(
    task, tuned, old, new, said
):
    source = SOURCE.read_text()
    assert source.count(old) == 1
    name = f"grid, {said}"
    changed = source.replace(old, new).replace('"grid"', repr(name)).replace("the best of", name, 1)
    own = types.ModuleType("own_grid")
    exec(changed, vars(own))
    with pytest.raises(ValueError, match=f"Grid: no release of it could be verified .*{said}"):
        tuned(task, own.Grid((0.05, 0.5)), epsilon=3.0, run=RUN, job=tiny_tuners.Asks())


def test_shards_and_a_resumed_job_release_the_same(own, task, tuned, tmp_path):
    whole = tuned(task, own.Grid(), seed=1)
    jobs = [tuning.Job(folder=str(tmp_path / "work"), shard=(one, 2)) for one in (0, 1, None)]
    assert [tuned(task, own.Grid(), seed=1, job=job) for job in jobs[:2]] == [None, None]
    for _ in range(2):
        merged = tuned(task, own.Grid(), seed=1, job=jobs[2])
        assert merged.release.hyperparameters == whole.release.hyperparameters


def test_it_is_audited(own):
    found = auditing.audit(
        own.Grid((1.0,)),
        auditing.CANARIES["gradient"],
        space=tuning.Space(learning_rate=1.0, clip_norm=1.0),
        number=4_000,
        delta=0.02,
        run=tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=2.0),
        seed=1,
    )
    assert found.stands and found.seen.value > 0.3 * found.claimed


def test_it_has_its_flags(own, tmp_path):
    program = (
        "import own_package.grid\n"
        "from dpjax.commands import command_line, tune\n"
        "command_line.run(tune.main)"
    )
    small = ["--method=grid", "--values=0.1,1", "--steps=2", "--noise_multiplier=4", "--seed=1"]
    folder = tmp_path / "run"
    told = subprocess.run(
        [sys.executable, "-c", program, *small, f"--out_dir={folder}"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{sys.path[0]}:{pathlib.Path.cwd()}", "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    claim = json.loads((folder / "release" / "guarantee.json").read_text())
    assert claim["selection"]["values"] == [0.1, 1.0]


def test_where_it_is_not_imported_verification_says_so(own, task, tuned, statement_of):
    path = statement_of(tuned(task, own.Grid()))
    words = json.loads(path.read_text())
    del words[release.SEAL]
    words["selection"]["rule"] = "a rule of nobody"
    files = {one.name: one.read_bytes() for one in path.parent.iterdir() if one != path}
    path.write_bytes(release.sealed(files, words)[path.name])
    with pytest.raises(verification.NotVerified, match="no tuner is registered .*: import"):
        verification.verify_release(path)


def test_names_and_rules_are_unique(own):
    with pytest.raises(ValueError, match="'grid' is registered already"):
        tuning.register_tuner("grid", rule="another")(own.Grid)
    with pytest.raises(ValueError, match="the rule .* is registered already"):
        tuning.register_tuner("another", rule=own.RULE)(own.Grid)
    assert tuning.registered_tuners()["grid"] is own.Grid


def test_what_is_no_tuner_is_refused(task):
    for wrong in ("random_repetitions", tuning.RandomRepetitions, None):
        with pytest.raises(ValueError, match="tuner must be a tuner, such as RandomRepetitions"):
            tuning.tune(task, None, wrong)

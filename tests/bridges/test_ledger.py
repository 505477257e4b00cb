"""The curator's ledger, as every bridge that spends keeps it."""

import importlib
import inspect
import json
import pkgutil
import stat

import numpy as np
import pytest

from dpjax import accounting, bridges, tuning
from dpjax.bridges.selection import RunsWarning
from dpjax.releases import ledger as ledgers

BASE, LAW = accounting.gaussian(2.0), accounting.Fixed(3)
SCORE = bridges.CountedScore("disjoint", 100, noise=3.0)
RECORDS = (np.arange(300.0).reshape(100, 3), np.arange(100))
SPACE = tuning.Space(rate=tuning.Uniform(0.0, 1.0))


def _count(seed, hyperparameters):
    return {"w": np.ones(2)}, 50


def _fails(*_):
    raise ArithmeticError("no luck")


def _any_run(run=_count, **more):
    given = {"base": BASE, "score": SCORE, "repetitions": LAW, "seed": 1}
    return bridges.tune(run, SPACE, **given | more)


def _optuna(run=_count, **more):
    optuna = pytest.importorskip("optuna", reason="the extra bridges is not installed")
    bridge = importlib.import_module("dpjax.bridges.optuna")
    law = {"rate": optuna.distributions.FloatDistribution(0.0, 1.0)}
    given = {"base": BASE, "score": SCORE, "repetitions": LAW, "seed": 1}
    return bridge.tune(lambda trial: run(trial.seed, trial.params), law, **given | more)


SPENDERS = {
    "any_run.tune": _any_run,
    "optuna.tune": _optuna,
}


def _ledger(beside, run="mine", name="mine.csv", records=RECORDS):
    return bridges.Ledger(beside / run, name, records)


def _entries(beside, run="mine"):
    lines = (beside / run / "curator" / ledgers.LEDGER_FILE).read_text().splitlines()
    assert "NOT PRIVATE" in lines[0]
    return [json.loads(line) for line in lines[1:]]


def test_every_bridge_that_draws_a_number_of_runs_takes_a_ledger():
    found = set()
    for module in pkgutil.iter_modules(bridges.__path__):
        try:
            imported = importlib.import_module(f"dpjax.bridges.{module.name}")
        except ImportError:  # Of an extra that is not installed.
            continue
        for name, value in vars(imported).items():
            code = value.__init__ if isinstance(value, type) else value
            own = getattr(value, "__module__", None) == imported.__name__ and name[0] != "_"
            if own and inspect.isfunction(code):
                taken = inspect.signature(code).parameters
                # `more` is all that `bridges.tune` takes.
                if "more" in taken or {"repetitions", "default"} <= taken.keys():
                    assert "more" in taken or "ledger" in taken, (module.name, name)
                    found.add(f"{module.name}.{name}")
    assert found <= set(SPENDERS) and any(found)


@pytest.mark.parametrize("spender", SPENDERS)
@pytest.mark.filterwarnings("ignore::dpjax.bridges.selection.RunsWarning")
@pytest.mark.filterwarnings("ignore::dpjax.tuning.cautions.UntrainedReleaseWarning")
def test_what_a_tuning_costs_is_noted_and_the_next_one_is_told(spender, tmp_path):
    result = SPENDERS[spender](ledger=_ledger(tmp_path))
    (entry,) = _entries(tmp_path)
    assert entry["epsilon"] == result.guarantee.epsilon(1e-5) and entry["delta"] == 1e-5
    assert entry["run"] == str(tmp_path / "mine")
    assert stat.S_IMODE((tmp_path / "mine" / "curator").stat().st_mode) == 0o700
    result.curator.save(tmp_path / "mine" / "curator")  # Beside it, as the command line has it.
    # Records tell, whatever the name; and the command line's search finds them.
    some = tuple(array[:60] for array in RECORDS)
    assert len(ledgers.earlier_runs(tmp_path, _ledger(tmp_path, "x", "y", some).seen).entries) == 1
    with pytest.warns(ledgers.EarlierRunsWarning, match="1 earlier run.s. on other.csv stand"):
        SPENDERS[spender](ledger=_ledger(tmp_path, "second", "other.csv", some))
    assert [one["run"] for one in _entries(tmp_path, "second")] == [
        str(tmp_path / "mine"),
        str(tmp_path / "second"),
    ]
    with pytest.raises(ValueError, match="is another run's: pass a ledger of another folder"):
        SPENDERS[spender](ledger=_ledger(tmp_path))
    assert len(_entries(tmp_path)) == 1


def test_it_is_noted_before_the_first_run_and_stays_whatever_becomes_of_it(tmp_path):
    def interrupted(seed, hyperparameters):
        assert len(_entries(tmp_path)) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _any_run(interrupted, ledger=_ledger(tmp_path))
    assert _entries(tmp_path)[0]["epsilon"] > 0


def test_a_draw_is_noted_once_and_its_folder_is_bound_to_the_records(tmp_path):
    job, calls = tuning.Job(folder=str(tmp_path / "work")), []

    def run(seed, hyperparameters):
        calls.append(seed)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return _count(seed, hyperparameters)

    with pytest.raises(KeyboardInterrupt):
        _any_run(run, job=job, ledger=_ledger(tmp_path))
    (before,) = _entries(tmp_path)
    changed = (RECORDS[0] + np.eye(100, 3), RECORDS[1])  # Of three records.
    for other in (None, _ledger(tmp_path, records=changed)):
        with pytest.raises(ValueError, match=r"other data or settings \(ledger\)"):
            _any_run(run, job=job, ledger=other)
    for number in (4, 4):  # It goes on, and is found again.
        _any_run(run, job=job, ledger=_ledger(tmp_path))
        assert len(calls) == number
    assert _entries(tmp_path) == [before]


def test_a_ledger_that_cannot_be_kept_ends_the_tuning_before_any_run(tmp_path):
    (tmp_path / "open" / "curator").mkdir(parents=True)
    (tmp_path / "open" / "curator").chmod(0o755)
    (tmp_path / "file").touch()
    for ledger, why in (
        (_ledger(tmp_path, "open"), "open to others"),
        ("runs/mine", "ledger must be a Ledger, such as bridges.Ledger"),
        (_ledger(tmp_path).seen, "ledger must be a Ledger"),
    ):
        with pytest.raises(ValueError, match=why) as raised:
            _any_run(lambda *_: pytest.fail("no run may begin"), ledger=ledger)
        assert "\n" not in str(raised.value)
    with pytest.raises(OSError):
        _any_run(lambda *_: pytest.fail("no run may begin"), ledger=_ledger(tmp_path, "file"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("mine", "a", ()), "one row a record"),
        (("mine", "a", np.float32(1)), "one row a record"),
        (("mine", "a", (np.ones(3), np.ones(2))), "one row a record"),
        (("mine", "a", np.array(["a", 1], object)), "one row a record"),
        (("mine", "a", np.zeros((0, 3))), "one row a record"),
        (("mine", "a", (np.ones(3), None, np.ones(()))), "one row a record"),
        (("mine", 7, RECORDS), "name must be text"),
        ((7, "a", RECORDS), "folder must be a path"),
    ],
)
def test_what_no_ledger_can_recognise_is_refused(given, why):
    with pytest.raises(ValueError, match=why):
        bridges.Ledger(*given)


def test_without_a_ledger_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RunsWarning):
        _any_run(_fails, default={"w": np.zeros(2)})
    assert not list(tmp_path.iterdir())

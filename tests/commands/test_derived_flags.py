"""Flags come from the fields of dataclasses, and a flag of something not chosen is refused."""

import dataclasses
import pickle
import warnings

import pytest
from processes import python

from dpjax import checks
from dpjax.commands import command_line, derived_flags
from dpjax.tuning.cautions import UselessModelWarning


@dataclasses.dataclass(frozen=True)
class Sample:
    """One line.

    Attributes:
      share: a share
        of something.
      number: how many.
      word: this or that.
      hidden: not on a command line.
      loud: whether it is.
      law: no number.
    """

    share: float
    number: int | None = None
    word: str = dataclasses.field(default="this", metadata={"choices": ("this", "that")})
    hidden: int = dataclasses.field(default=0, metadata={"flag": None})
    loud: bool = False
    law: object = None


def test_options_are_the_fields_with_the_words_of_the_docstring():
    found = {option.name: option for option in derived_flags.options_of(Sample)}
    assert set(found) == {"share", "number", "word", "loud"}
    assert found["share"].words == "a share of something."
    assert found["share"].default is derived_flags.REQUIRED and found["share"].kind is float
    assert found["number"].kind is int and found["loud"].kind is bool
    assert found["word"].choices == ("this", "that")


# In a process of its own: flags are global, and other tests define their binaries' here.
_ALL = """
import dataclasses, math
from absl import flags
from dpjax import tuning
from dpjax.commands import derived_flags, law_flags, tuner_flags

shared = derived_flags.owners_of(tuner_flags._METHOD.options)
hidden = {"repetitions", "failure_probability"}
for name, cls in tuning.registered_tuners().items():
    options = {option.name: option for option in derived_flags.options_of(cls)}
    assert {field.name for field in dataclasses.fields(cls)} - hidden == set(options), name
    for option in options.values():
        assert option.words, (name, option.name)
        wanted = f"--method={'|'.join(shared[option.flag])}"
        assert wanted in flags.FLAGS[option.flag].help, (name, option.name)
for name, cls in law_flags._FAMILIES.items():
    assert math.isclose(cls.of_mean(7.0).mean, 7.0), name
print(sorted(law_flags._FAMILIES))
"""


def test_every_setting_of_every_tuner_and_every_law_with_a_mean_has_a_flag():
    done = python("-c", _ALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(
        [
            *("binomial", "fixed", "geometric", "logarithmic", "poisson"),
            "truncated_negative_binomial",
        ]
    )


def made(threshold: float, sizes: tuple[int, ...] = (64,), *, seed: int | None = None, path="x"):
    """Makes something.

    Args:
      threshold, seed: two numbers.
      sizes: of all.
    """
    if threshold > 1:
        raise checks.Refused(("threshold", threshold), ": pass at most 1")
    return threshold, sizes, seed


def test_options_of_a_function_are_its_arguments():
    changes = {"threshold": {"flag": "limit"}, "seed": 3}
    found = {option.name: option for option in derived_flags.options_of(made, **changes)}
    assert set(found) == {"threshold", "sizes", "seed"}  # The path says no kind.
    assert found["threshold"].flag == "limit" and found["seed"].default == 3
    assert found["seed"].words == found["threshold"].words == "two numbers."
    assert found["sizes"].listed and found["sizes"].kind is int
    without = derived_flags.options_of(made, "sizes")
    assert [option.name for option in without] == ["threshold", "seed"]


_GROUP = """
import sys
sys.path[:0] = ["tests/commands", "tests/helpers"]
from absl import flags
from dpjax.commands import derived_flags
from test_derived_flags import made

group = derived_flags.Group(made, threshold={"flag": "limit"})
flags.FLAGS(["program", *sys.argv[1:]])
try:
    print(group.made(made), group.threshold)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "arguments,printed",
    [
        (["--limit=.5"], "(0.5, (64,), None) 0.5"),
        (["--limit=.5", "--sizes=1,2", "--seed=4"], "(0.5, (1, 2), 4) 0.5"),
        (["--limit=2"], "--limit=2.0: pass at most 1"),
        (["--limit=.5", "--sizes=1,x"], "--sizes=1,x: pass whole numbers, as in 128,64"),
    ],
)
def test_what_a_group_makes_and_its_errors_name_the_flags(arguments, printed):
    done = python("-c", _GROUP, *arguments, check=True)
    assert done.stdout.strip() == printed


_OF_ONES_OWN = """
import sys
import numpy as np
import optax
from absl import flags
from dpjax import data, training

@training.register_optimizer("decayed", learning_rate=(0.1, 1.0))
def decayed(schedule=None, *, weight_decay: float = 0.0):
    \"\"\"Shrinks parameters.

    Args:
      weight_decay: by how much.
    \"\"\"
    shrink = optax.add_decayed_weights(weight_decay)
    return lambda h: optax.chain(shrink, optax.sgd(h["learning_rate"]))

def encode(stored, *, scale: float = 1.0):
    return (scale * stored).astype(np.float32)

arrays = {"train_inputs": np.ones((60, 2)), "train_labels": np.arange(60) % 2}
data.register(
    data.Source(
        name="ones", description="Ones.", classes=2, input_shape=(2,), train_count=60,
        read=lambda folder: arrays, encode=encode,
    )
)
from dpjax.commands import tune

flags.FLAGS(["program", *sys.argv[1:]])
try:
    tune.checked_run()
    chosen = tune.tuner_flags.tuner()
    loaded, _ = tune.load_data(chosen)
    print(float(loaded.train.inputs[0, 0]), tune._DATA.named_optimizer("constant").description)
    print(tune.search_space(chosen).parameters["learning_rate"].highest)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "arguments,printed",
    [
        (
            ["--dataset=ones", "--scale=3", "--optimizer=decayed", "--weight_decay=0.25"],
            "3.0 {'name': 'decayed', 'learning_rate_schedule': 'constant', "
            "'weight_decay': '0.25'}\n1.0",
        ),
        (["--scale=3"], "--scale belongs to --dataset=ones: drop it"),
        (["--weight_decay=1"], "--weight_decay belongs to --optimizer=decayed: drop it"),
    ],
)
def test_an_optimizer_and_a_data_set_of_ones_own_have_flags_for_their_settings(arguments, printed):
    done = python("-c", _OF_ONES_OWN, *arguments)
    assert done.stdout.strip() == printed, done.stderr


_OWN = """
import sys
from absl import flags
sys.path.insert(0, "tests/conformance")
import own_tuner
from dpjax.commands import tuner_flags
flags.FLAGS(["program", *sys.argv[1:]])
try:
    print(tuner_flags.tuner())
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "arguments,printed",
    [
        (["--method=grid", "--values=0.5,2"], "Grid(values=(0.5, 2.0))"),
        (["--method=grid"], "Grid(values=(0.1, 1.0))"),
        (["--method=grid", "--values=.5,-1"], "--values=0.5,-1.0: pass learning rates, 0 or more"),
        (
            ["--values=5"],
            "--values belongs to --method=grid: drop it, or change the method",
        ),
        (
            ["--method=grid", "--mean=5"],
            "--mean belongs to --method=random_repetitions: drop it, or change the method",
        ),
    ],
)
def test_a_tuner_of_ones_own_has_flags_without_a_line_for_them(arguments, printed):
    done = python("-c", _OWN, *arguments, check=True)
    assert done.stdout.strip() == printed


_CLASH = """
import dataclasses
from dpjax import tuning
@tuning.register_tuner("halves", rule="halves")
@dataclasses.dataclass(frozen=True)
class Halves(tuning.RandomRepetitions):
    mean: float = 4.0
try:
    from dpjax.commands import tuner_flags
except ValueError as error:
    print(error)
"""


def test_a_setting_of_ones_own_that_is_another_flag_already_is_refused():
    assert python("-c", _CLASH, check=True).stdout.strip() == (
        "--method=halves: the field 'mean' would be the flag --mean, and the command has another "
        "of this name: rename the field"
    )


NAMES = {"rate": "rate", "hits": "cap", "sampling": "sampling"}


@pytest.mark.parametrize(
    ("words", "in_python", "as_flags"),
    [
        ((("rate", 3), ": pass 1"), "rate=3: pass 1", "--rate=3: pass 1"),
        ((("hits",), " caps hits"), "hits caps hits", "--cap caps hits"),
        (("pass ", ("sampling", "fixed")), "pass sampling='fixed'", "pass --sampling=fixed"),
        ((("rate", (0.5, 2)), " of {}"), "rate=(0.5, 2) of {}", "--rate=0.5,2 of {}"),
        ((("hits", True), ", ", ("hits", False)), "hits=True, hits=False", "--cap, --nocap"),
        ((("hits", ..., "run=Run({})"), "!"), "run=Run(hits=...)!", "--cap=...!"),
        ((("rate", None), " of ", ("a", 2)), "rate=None of a=2", "--rate=None of a=2"),
        ((("rate",), " and ", ("hits", 2)), "rate and hits=2", "--rate and --cap=2"),
        (("no setting, but rate=3",), "no setting, but rate=3", "no setting, but rate=3"),
    ],
)  # fmt: skip
def test_a_refusal_names_settings_as_python_and_as_flags(words, in_python, as_flags):
    for error in (checks.Refused(*words), pickle.loads(pickle.dumps(checks.Refused(*words)))):
        assert str(error) == in_python
        with pytest.raises(ValueError) as caught, derived_flags.named_as_flags(NAMES):
            raise error
        assert str(caught.value) == as_flags


def test_each_context_names_its_own_settings():
    outer, inner = map(derived_flags.named_as_flags, ({"a": "c"}, {"b": "b"}))
    with pytest.raises(ValueError, match="^--b=1 of --c=2, d=3$"), outer, inner:
        raise checks.Refused(("b", 1), " of ", ("a", 2), ", ", ("d", 3))


def test_a_warning_names_settings_too():
    shown = []
    with command_line.shown_warnings(shown.append, {"class_priors": "priors"}):
        warnings.warn(UselessModelWarning("pass ", ("class_priors",)), stacklevel=1)
        warnings.warn("class_priors", stacklevel=1)
    assert shown == ["warning: pass --priors", "warning: class_priors"]

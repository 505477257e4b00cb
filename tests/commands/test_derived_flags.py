"""Flags come from the fields of dataclasses, and a flag of something not chosen is refused."""

import dataclasses
import subprocess
import sys

import pytest

from dpjax.commands import derived_flags


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

shared = derived_flags.owners_of(tuner_flags._OPTIONS)
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
    done = subprocess.run([sys.executable, "-c", _ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(
        ["binomial", "fixed", "geometric", "logarithmic", "negative_binomial", "poisson"]
    )


_OWN = """
import sys
from absl import flags
sys.path.insert(0, "tests/conformance")
import test_own_tuner
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
        (["--method=last_run", "--runs=5"], "LastRun(runs=5)"),
        (["--method=last_run"], "LastRun(runs=3)"),
        (
            ["--runs=5"],
            "--runs belongs to --method=last_run: drop it, or change the method",
        ),
        (
            ["--method=last_run", "--mean=5"],
            "--mean belongs to --method=random_repetitions: drop it, or change the method",
        ),
    ],
)
def test_a_tuner_of_ones_own_has_flags_without_a_line_for_them(arguments, printed):
    done = subprocess.run(
        [sys.executable, "-c", _OWN, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == printed

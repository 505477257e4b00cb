"""Flags come from the fields of dataclasses, and a flag of something not chosen is refused."""

import dataclasses
import subprocess
import sys

import pytest
from absl import flags

from dpjax import tuning
from dpjax.commands import derived_flags, law_flags, tuner_flags


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


@pytest.mark.parametrize("name", sorted(tuning.registered_tuners()))
def test_every_setting_of_every_tuner_has_a_flag_with_words(name):
    if name == "last_run":
        pytest.skip("a tuner of another test")
    cls = tuning.registered_tuners()[name]
    options = {option.name: option for option in derived_flags.options_of(cls)}
    hidden = {"repetitions", "failure_probability"}
    assert {field.name for field in dataclasses.fields(cls)} - hidden == set(options)
    for option in options.values():
        assert option.words, (name, option.name)
        assert (
            f"--method={'|'.join(derived_flags.owners_of(tuner_flags._OPTIONS)[option.flag])}"
            in (flags.FLAGS[option.flag].help)
        )


def test_laws_on_the_command_line_are_those_with_a_mean():
    assert set(law_flags._FAMILIES) == {
        "binomial",
        "fixed",
        "geometric",
        "logarithmic",
        "negative_binomial",
        "poisson",
    }
    for name, cls in law_flags._FAMILIES.items():
        assert cls.of_mean(7.0).mean == pytest.approx(7.0), name


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

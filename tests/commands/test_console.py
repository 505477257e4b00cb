"""The command `dpjax`."""

import json

import pytest
from processes import python

COMMAND = ["-c", "from dpjax.commands.console import main; main()"]


def run(*arguments):
    return python(*COMMAND, *arguments)


def test_prices_need_no_checkout(tmp_path):
    done = python(*COMMAND, "price", "--rho=0.1", "--json", "--mean=5", check=True, cwd=tmp_path)
    prices = json.loads(done.stdout)["epsilon"]
    assert prices["whole_tuning"] > prices["one_run"] > 0


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([], "no command: pass one of tune, price, verify, schema"),
        (["tuen"], "unknown command 'tuen'"),
        (["verify"], "takes one path"),
        (["verify", "/nowhere/guarantee.json"], "cannot be read"),
        (["price", "--rho=-1"], "rho"),
        (["schema", "people.csv"], "takes two paths"),
        (["schema", "/nowhere.csv", "/tmp/schema.json"], "/nowhere.csv does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_help_names_the_commands_and_the_flags_of_one():
    assert all(word in run("--help").stdout for word in ("tune", "price", "verify"))
    of_price = run("price", "--help")
    assert of_price.returncode == 0 and "--noise_multiplier" in of_price.stdout

"""Flags made from the fields of dataclasses: their names, types and words stand there alone.

A field's flag has the field's name, or `metadata["flag"]`; its type is the annotation's; its words
are those of the class's docstring, under "Attributes". All are unset by default, so that what was
given can be told from what was not, and what nothing reads can be refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from absl import flags

flags.disclaim_key_flags()  # They belong to the module that defines them through this one.

_DEFINE = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}


@dataclasses.dataclass(frozen=True)
class Option:
    """One setting that a flag may name.

    Attributes:
      name: of the setting, an argument of what is made.
      flag: its flag's name.
      kind: int, float, str or bool.
      words: what it is.
      default: where the flag is not given; `REQUIRED` if it must be.
      choices: the words that it may be, of a text.
    """

    name: str
    flag: str
    kind: type
    words: str
    default: Any
    choices: tuple[str, ...] = ()


REQUIRED = dataclasses.MISSING


def options_of(cls: type) -> list[Option]:
    """The options of a dataclass: its fields that a flag can name."""
    annotations, words = typing.get_type_hints(cls), attributes(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind = _plain(annotations[field.name])
        if kind is None or field.metadata.get("flag", "") is None:
            continue
        found.append(
            Option(
                name=field.name,
                flag=field.metadata.get("flag", field.name),
                kind=kind,
                words=words.get(field.name, ""),
                default=field.default,
                choices=tuple(field.metadata.get("choices", ())),
            )
        )
    return found


def options_of_call(function: typing.Callable, words: Mapping[str, str]) -> list[Option]:
    """The options of a function's arguments that are numbers or texts, but its first."""
    annotations = typing.get_type_hints(function)
    return [
        Option(
            name=one.name,
            flag=one.name,
            kind=_plain(annotations[one.name]),
            words=words.get(one.name, ""),
            default=REQUIRED if one.default is one.empty else one.default,
        )
        for one in list(inspect.signature(function).parameters.values())[1:]
    ]


def attributes(cls: type) -> dict[str, str]:
    """Words of a docstring's "Attributes" (or "Args"), by name."""
    doc = inspect.getdoc(cls) or ""
    match = re.search(r"^(?:Attributes|Args):\n((?:  .*\n?|\n)+)", doc, re.M)
    entries = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", match[1] if match else "", re.M)
    return {name: " ".join(text.split()) for name, text in entries}


def _plain(annotation: Any) -> type | None:
    """int, float, str or bool that an annotation allows; None where it allows none of them."""
    members = [annotation]
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        members = list(typing.get_args(annotation))
    return next((kind for kind in (bool, int, float, str) if kind in members), None)


def define(by_owner: Mapping[str, list[Option]], of: str) -> None:
    """Defines one flag for each name, whatever number of owners share it.

    Args:
      by_owner: name of what is made (a tuner, a law) -> its options.
      of: the flag that names an owner, as in "method", for the words.
    """
    for flag, owners in sorted(owners_of(by_owner).items()):
        options = list(owners.values())
        words = dict.fromkeys(option.words.rstrip(".") for option in options)
        known = {owner: option.default for owner, option in owners.items()}
        said = {value for value in known.values() if value is not None and value is not REQUIRED}
        if len(said) == 1 and said != {False}:
            words[f"{said.pop()} if unset"] = None
        elif len(said) > 1:
            each = (f"{owner} {value}" for owner, value in known.items() if value is not None)
            words[f"if unset: {', '.join(each)}"] = None
        text = f"--{of}={'|'.join(owners)}: {'; '.join(words)}."
        if options[0].choices:
            flags.DEFINE_enum(flag, None, list(options[0].choices), text)
        elif options[0].kind is bool:
            flags.DEFINE_bool(flag, False, text)
        else:
            _DEFINE[options[0].kind](flag, None, text)


def owners_of(by_owner: Mapping[str, list[Option]]) -> dict[str, dict[str, Option]]:
    """flag -> owner -> option."""
    found: dict[str, dict[str, Option]] = {}
    for owner, options in by_owner.items():
        for option in options:
            found.setdefault(option.flag, {})[owner] = option
    return found


def refuse_others(
    owners_of_flags: Mapping[str, Collection[str]], chosen: str, of: str, advice: str = ""
) -> None:
    """Refuses flags that were given and that the chosen owner does not have.

    Args:
      owners_of_flags: flag -> the owners that have it.
      chosen: the owner.
      of: the flag that names an owner.
      advice: what else to do, for the message.

    Raises:
      ValueError: naming the owners that have it.
    """
    for flag, owners in owners_of_flags.items():
        if flags.FLAGS[flag].present and chosen not in owners:
            raise ValueError(f"--{flag} belongs to --{of}={' or '.join(owners)}: drop it{advice}")


def given(options: list[Option]) -> dict[str, Any]:
    """name -> value of the options whose flags were given."""
    return {
        option.name: flags.FLAGS[option.flag].value
        for option in options
        if flags.FLAGS[option.flag].present
    }

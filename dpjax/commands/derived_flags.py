"""Makes flags from the fields of dataclasses and the arguments of functions.

A flag has its field's or argument's name, or `metadata["flag"]`; its type is the annotation's; its
help is `metadata["help"]`, or the docstring's, under "Attributes" or "Args". If one of several
owners is chosen (a tuner, a law, an optimiser, a data set), their flags are unset by default, so
that a flag which was given, but which the chosen owner does not read, can be refused (`define`).
The flags of an object that a program always makes are a `Group`, each with its default.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from dpjax import checks

flags.disclaim_key_flags()  # They belong to the module that defines them through this one.

_DEFINE = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}
_LISTS = (tuple, collections.abc.Sequence)
REQUIRED = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Option:
    """One setting that a flag may name.

    `words` are its help, `choices` the texts allowed, `least` the smallest whole number allowed.
    `listed` means several values of `kind` (int, float, str or bool), written with commas, or by
    repeating the flag where there are choices. The default `REQUIRED` means that there is none.
    """

    name: str
    flag: str
    kind: type
    words: str
    default: Any
    choices: tuple[str, ...] = ()
    listed: bool = False
    least: int | None = None

    def define(self, default: Any, words: str) -> None:
        """Defines the flag."""
        if self.choices:
            define = flags.DEFINE_multi_enum if self.listed else flags.DEFINE_enum
            define(self.flag, default, list(self.choices), words)
        elif self.listed:
            texts = default and [one if self.kind is str else f"{one:g}" for one in default]
            flags.DEFINE_list(self.flag, texts, words)
        elif self.kind is bool:
            flags.DEFINE_bool(self.flag, bool(default), words)
        elif self.least is not None:
            flags.DEFINE_integer(self.flag, default, words, lower_bound=self.least)
        else:
            _DEFINE[self.kind](self.flag, default, words)

    def value(self) -> Any:
        """Returns the flag's value, or the default."""
        value = flags.FLAGS[self.flag].value
        if value is None:
            return None if self.default is REQUIRED else self.default
        if not self.listed:
            return value
        try:
            return tuple(map(self.kind, value))
        except ValueError:
            numbers = "whole numbers, as in 128,64" if self.kind is int else "numbers, as in 10,1"
            raise ValueError(f"--{self.flag}={','.join(value)}: pass {numbers}") from None


def options_of(
    made: Callable[..., Any],
    *but: str,
    documented: Callable[..., Any] | None = None,
    **changes: Any,
) -> list[Option]:
    """Returns the options of a dataclass or function, all but the names in `but`.

    The help is read from the docstring of `documented`, if given. `changes` maps an option's name
    to another default, or to a mapping of the fields of its `Option` that are to be replaced.
    """
    annotations, words = typing.get_type_hints(made), attributes(documented or made)
    fields = getattr(made, "__dataclass_fields__", {})
    found = []
    for name, one in inspect.signature(made).parameters.items():
        metadata = fields[name].metadata if name in fields else {}
        kind, listed = _flag_type(annotations.get(name))
        if kind is None or name in but or metadata.get("flag", "") is None:
            continue
        option = Option(
            name=name,
            flag=metadata.get("flag", name),
            kind=kind,
            words=metadata.get("help", words.get(name, "")),
            default=REQUIRED if one.default is one.empty else one.default,
            choices=tuple(metadata.get("choices", ())),
            listed=listed,
            least=metadata.get("least"),
        )
        other = changes.get(name, {})
        other = other if isinstance(other, Mapping) else {"default": other}
        found.append(dataclasses.replace(option, **other))
    return found


def attributes(made: Callable[..., Any]) -> dict[str, str]:
    """Returns the texts under a docstring's "Attributes" (or "Args"), by name."""
    doc = inspect.getdoc(made) or ""
    match = re.search(r"^(?:Attributes|Args):\n((?:  .*\n?|\n)+)", doc, re.M)
    entries = re.findall(r"^  ([\w, ]+): (.*(?:\n    .*)*)", match[1] if match else "", re.M)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def _flag_type(annotation: Any) -> tuple[type | None, bool]:
    """Returns the flag type for an annotation (None: no flag), and whether it takes a list."""
    either = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    members = typing.get_args(annotation) if either else [annotation]
    for listed in (False, True):
        for kind in (bool, int, float, str):
            if kind in members:
                return kind, listed
        members = [typing.get_args(one)[0] for one in members if typing.get_origin(one) in _LISTS]
    return None, False


class Group:
    """The flags of an object that a program always makes, each with its default."""

    def __init__(self, made: Callable[..., Any], *but: str, **changes: Any):
        """Defines a flag for each option; arguments as in `options_of`."""
        self.options = options_of(made, *but, **changes)
        for option in self.options:
            default = None if option.default is REQUIRED else option.default
            option.define(default, option.words)

    def __getattr__(self, name: str) -> Any:
        """Returns the value of the setting of that name."""
        for option in self.__dict__.get("options", ()):
            if option.name == name:
                return option.value()
        raise AttributeError(name)

    @property
    def names(self) -> dict[str, str]:
        """Returns setting -> flag."""
        return {option.name: option.flag for option in self.options}

    def values(self) -> dict[str, Any]:
        """Returns setting -> value."""
        return {option.name: option.value() for option in self.options}

    def made(self, make: Callable[..., Any], *rest: Any, **more: Any) -> Any:
        """Calls `make` with these values and further ones; its errors then name the flag."""
        with named_as_flags(self.names):
            return make(*rest, **(self.values() | more))


@contextlib.contextmanager
def named_as_flags(names: Mapping[str, str]) -> Iterator[None]:
    """Makes errors raised in the block name flags, not settings; `names` is setting -> flag."""
    try:
        yield
    except checks.Refused as error:
        error.name_flags(names)
        raise


class OneOf:
    """A flag that names one of several owners (clip rules, tuners), and flags of their settings."""

    def __init__(
        self,
        flag: str,
        by_owner: Mapping[str, list[Option]],
        default: str | None,
        words: str,
        advice: str = "",
    ):
        """Defines the flags for the calling module; `advice` is added to the end of a refusal."""
        self.flag, self.options, self.advice = flag, by_owner, advice
        self._holder = flags.DEFINE_enum(flag, default, list(by_owner), words)
        define(by_owner, f"--{flag}=")

    @property
    def value(self) -> str:
        """Returns the name of the chosen owner."""
        return self._holder.value

    @property
    def names(self) -> dict[str, str]:
        """Returns setting -> flag, of the chosen owner."""
        return {option.name: option.flag for option in self.options.get(self.value, [])}

    def given(self, others: Mapping[str, Collection[str]] | None = None) -> dict[str, Any]:
        """Returns the settings that were given; refuses those of other owners, and missing ones.

        `others` maps further flags to the owners that read them.
        """
        owners = {**owners_of(self.options), **(others or {})}
        refuse_others(owners, [self.value], self.flag, self.advice)
        return given(self.options.get(self.value, []), f"--{self.flag}={self.value}")


def listed(words: str, owners: Mapping[str, Callable[..., Any]]) -> str:
    """Returns the help of a flag: `words`, then the first line of each owner's docstring."""
    each = (f"{name}: {(one.__doc__ or '').splitlines()[0]}" for name, one in owners.items())
    return f"{words}: {'; '.join(words.rstrip('.') for words in each)}."


def define(by_owner: Mapping[str, list[Option]], by: str) -> None:
    """Defines one flag for each name, which several owners (tuners, laws) may share.

    `by` says how an owner is chosen, as in "--method=", for the help.
    """
    for _, owners in sorted(owners_of(by_owner).items()):
        options = list(owners.values())
        texts = dict.fromkeys(option.words.rstrip(".") for option in options if option.words)
        # A text that begins another owner's text is left out: that one says it too.
        words = {
            one: None
            for one in texts
            if not any(two != one and two.startswith(one) for two in texts)
        }
        known = {owner: option.default for owner, option in owners.items()}
        defaults = {
            value for value in known.values() if value is not None and value is not REQUIRED
        }
        if len(defaults) == 1 and defaults != {False}:
            words[f"{defaults.pop()} if unset"] = None
        elif len(defaults) > 1:
            each = (f"{owner} {value}" for owner, value in known.items() if value is not None)
            words[f"if unset: {', '.join(each)}"] = None
        who = f"{by}{'|'.join(owners)}"
        try:
            options[0].define(None, f"{who}: {'; '.join(words)}.")
        except flags.DuplicateFlagError:
            raise ValueError(
                f"{who}: the field {options[0].name!r} would be the flag --{options[0].flag}, and "
                "the command has another of this name: rename the field"
            ) from None


def owners_of(by_owner: Mapping[str, list[Option]]) -> dict[str, dict[str, Option]]:
    """Returns flag -> owner -> option."""
    found: dict[str, dict[str, Option]] = {}
    for owner, options in by_owner.items():
        for option in options:
            found.setdefault(option.flag, {})[owner] = option
    return found


def refuse(names: Iterable[str], why: str) -> None:
    """Raises an error if one of these flags was given; `why` says why not, and what to do."""
    for name in names:
        if flags.FLAGS[name].present:
            raise ValueError(f"--{name} {why}")


def refuse_others(
    owners_of_flags: Mapping[str, Collection[str]],
    chosen: Collection[str],
    of: str,
    advice: str = "",
) -> None:
    """Refuses given flags that no owner chosen by the flag `of` reads."""
    for flag, owners in owners_of_flags.items():
        if set(chosen).isdisjoint(owners):
            refuse([flag], f"belongs to --{of}={' or '.join(owners)}: drop it{advice}")


def given(options: Sequence[Option], owner: str = "") -> dict[str, Any]:
    """Returns setting -> value of the flags given; refuses if one that `owner` needs is missing."""
    found = {one.name: one.value() for one in options if flags.FLAGS[one.flag].present}
    missing = [one for one in options if one.default is REQUIRED and one.name not in found]
    if owner and missing:
        flags_of_them = " and ".join(f"--{one.flag}" for one in missing)
        raise ValueError(f"{owner} needs {flags_of_them} beside it")
    return found

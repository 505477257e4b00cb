"""Clip rules: how one example's gradient is brought to a bounded norm; one frozen dataclass each.

A rule says of which parameters one norm is taken (`groups`), and what is done with it: scaled down
to the clip norm where it is larger, or always (`divisor`). `clipped_grad` takes one and proves
the bound; `TrainConfig(clipping=)` trains by it.

| rule | name | source |
|---|---|---|
| `GlobalClipping` | global | Abadi et al. 2016, https://arxiv.org/abs/1607.00133 |
| `PerLeafClipping` | per_leaf | McMahan et al. 2018, https://arxiv.org/abs/1710.06963 |
| `GroupedClipping` | grouped | McMahan et al. 2018, with groups in the place of layers |
| `AutomaticClipping` | automatic | Bu et al. 2023, https://arxiv.org/abs/2206.07136 |
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import numpy as np

from dpjax import checks


class Group(NamedTuple):
    """Parameters whose gradients have one norm."""

    members: tuple[int, ...]  # their places among all parameters
    share: float  # of the clip norm; the squares of all groups' shares add up to 1


@dataclasses.dataclass(frozen=True)
class ClipRule:
    """Base class of clipping rules; by default one fixed clip norm for the whole gradient.

    Example:
      >>> from dpjax import training
      >>> rule = training.GroupedClipping(("encoder", "head"))
      >>> isinstance(rule, training.ClipRule), rule.describe()["rule"]
      (True, 'grouped')

    Attributes:
      name: as `clipped_grad`, the commands and a release name it.
      by_leaf: whether every parameter is a group of its own, with equal shares, so that a pytree of
        clip norms may be given, too.
    """

    name: ClassVar[str]
    by_leaf: ClassVar[bool] = False

    def groups(self, names: Sequence[str]) -> list[Group]:
        """Groups the parameters of these names ("params/Dense_0/kernel"), each into one group."""
        return [Group(tuple(range(len(names))), 1.0)]

    @property
    def scales_up(self) -> bool:
        """Returns whether every gradient is scaled, by clip norm / `divisor(norm)`.

        A rule that has a `divisor` does. The others scale larger gradients down to the clip norm.
        """
        return type(self).divisor is not ClipRule.divisor

    def divisor(self, norm: jax.Array) -> jax.Array:
        """Returns what the clip norm is divided by, from one row's norm; scalars.

        Less than the norm counts as the norm, and a row whose divisor is NaN contributes nothing:
        a contribution is bounded whatever stands here.
        """
        return norm

    def describe(self) -> dict[str, Any]:
        """Describes the rule in plain values, as a release states it; see `rule_from_dict`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"rule": self.name} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
        }


CLIP_RULES: dict[str, type[ClipRule]] = {}
"""By name; filled by `register_clip_rule`."""

_Rule = TypeVar("_Rule", bound=type[ClipRule])


def register_clip_rule(name: str) -> Callable[[_Rule], _Rule]:
    """Class decorator: makes a rule known by name, and releases that name it verifiable.

    The example is DP-PSAC (Xia et al. 2023, https://arxiv.org/abs/2212.00328). It scales gradients
    far below `radius` up less than `AutomaticClipping` does.

    Example:
      >>> import dataclasses
      >>> from dpjax import training
      >>> @training.register_clip_rule("per_sample_adaptive")
      ... @dataclasses.dataclass(frozen=True)
      ... class PerSampleAdaptive(training.ClipRule):
      ...     radius: float = 0.1
      ...     def divisor(self, norm):
      ...         return norm + self.radius / (norm + self.radius)
      >>> PerSampleAdaptive(0.5).describe()
      {'rule': 'per_sample_adaptive', 'radius': 0.5}
    """

    def registered(cls: _Rule) -> _Rule:
        if name in CLIP_RULES:
            raise ValueError(f"clipping {name!r} is registered already: choose another name")
        cls.name = name
        CLIP_RULES[name] = cls
        return cls

    return registered


def checked_rule(name: str, value: object) -> ClipRule:
    """Returns a clip rule that is given, or named if it needs no settings; refuses others."""
    usual = [known for known, cls in CLIP_RULES.items() if not _needed(cls)]
    if isinstance(value, str) and value in usual:
        return CLIP_RULES[value]()
    if isinstance(value, ClipRule):
        if not hasattr(value, "name"):
            kind = type(value).__name__
            raise checks.Refused(
                (name,), f": {kind} has no name: put @training.register_clip_rule above its class"
            )
        _check_written(value)
        return value
    raise ValueError(
        f"unknown {name} {checks.shown(value)}: pass one of {', '.join(usual)}, or a rule such as "
        "training.GroupedClipping(('encoder', 'head'))"
    )


def _check_written(rule: ClipRule) -> None:
    """Refuses a rule whose settings a release could not state, or whose divisor is no number."""
    kind = type(rule)
    if "__dataclass_fields__" not in vars(kind):
        raise ValueError(
            f"clipping {rule.name!r} states no settings: put @dataclasses.dataclass(frozen=True) "
            f"above {kind.__name__}"
        )
    wanted = f"{kind.__name__}.divisor must return one number for a norm, by jax.numpy"
    try:
        found = jax.eval_shape(rule.divisor, jax.ShapeDtypeStruct((), np.float32))
    except Exception as error:  # Whatever somebody's own function raises.
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{wanted}, with jnp.where in the place of if: {why}") from error
    if not isinstance(found, jax.ShapeDtypeStruct) or found.shape:
        raise ValueError(f"{wanted}, not {checks.shown(found)}")


def rule_from_dict(described: Mapping[str, Any]) -> ClipRule:
    """Rebuilds the rule that `ClipRule.describe` described; raises an error for malformed words."""
    settings = dict(described)
    name = settings.pop("rule")
    if name not in CLIP_RULES:
        raise ValueError(f"unknown clip rule {name!r}: import the module that registers it")
    return CLIP_RULES[name](**settings)


def _needed(cls: type[ClipRule]) -> list[str]:
    """Returns the names of a rule's settings without a default."""
    missing = dataclasses.MISSING
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is missing and field.default_factory is missing
    ]


@register_clip_rule("global")
@dataclasses.dataclass(frozen=True)
class GlobalClipping(ClipRule):
    """g min(1, C / |g|), with the norm of the whole gradient."""


class _Shared(ClipRule):
    """Rules whose groups have shares of the clip norm."""

    shares: Mapping[str, float] | None

    def _check_shares(self) -> None:
        """Refuses shares that are not positive numbers by name; sorts them by name."""
        if self.shares is None:
            return
        checks.mapping("shares", self.shares, "from the names of groups to positive numbers")
        shares = {
            checks.text("a group's name", group): checks.positive(f"share of {group!r}", share)
            for group, share in self.shares.items()
        }
        object.__setattr__(self, "shares", dict(sorted(shares.items())))

    def _with_shares(self, groups: dict[str, list[int]]) -> list[Group]:
        """Returns the groups with their shares, scaled so that the squares add up to 1."""
        shares = dict.fromkeys(groups, 1.0) if self.shares is None else self.shares
        if set(shares) != set(groups):
            wrong = ", ".join(sorted(set(shares) ^ set(groups)))
            raise checks.Refused(
                ("shares",),
                f" and groups differ in {wrong}: pass one share for each of "
                f"{', '.join(sorted(groups))}",
            )
        whole = math.hypot(*shares.values())
        return [Group(tuple(members), shares[name] / whole) for name, members in groups.items()]

    def __hash__(self) -> int:
        return hash((type(self), repr(self)))


@register_clip_rule("per_leaf")
@dataclasses.dataclass(frozen=True, eq=True)
class PerLeafClipping(_Shared):
    """Every parameter's gradient is clipped by itself, to its share of the clip norm.

    Attributes:
      shares: name of every trained parameter ("params/Dense_0/kernel") -> its share, relative to
        the others'; equal shares, C / sqrt(parameters) each, if None.
    """

    shares: Mapping[str, float] | None = None
    __hash__ = _Shared.__hash__

    def __post_init__(self) -> None:
        self._check_shares()

    @property
    def by_leaf(self) -> bool:  # type: ignore[override]
        return self.shares is None

    def groups(self, names: Sequence[str]) -> list[Group]:
        return self._with_shares({name: [place] for place, name in enumerate(names)})


@register_clip_rule("grouped")
@dataclasses.dataclass(frozen=True, eq=True, repr=False)
class GroupedClipping(_Shared):
    """The gradient of every group of parameters is clipped by itself, to its share.

    Attributes:
      groups_of: prefixes of parameters' names, each the name of a group ("params/Dense_0" holds
        "params/Dense_0/kernel"; the longest that fits counts, "" fits all); or a function from a
        parameter's name to its group's, which no release can state.
      shares: name of every group -> its share of the clip norm, relative to the others'; equal
        shares, C / sqrt(groups) each, if None.
    """

    groups_of: tuple[str, ...] | Callable[[str], str] = dataclasses.field(
        metadata={"flag": "clip_groups"}
    )
    shares: Mapping[str, float] | None = None
    __hash__ = _Shared.__hash__

    def __post_init__(self) -> None:
        if not callable(self.groups_of):
            listed = checks.listed("groups_of", self.groups_of, "prefixes of parameters' names")
            if not listed:
                raise checks.Refused(("groups_of",), " is empty: pass a prefix, '' for all")
            prefixes = tuple(checks.text("a prefix in groups_of", one) for one in listed)
            object.__setattr__(self, "groups_of", prefixes)
        self._check_shares()

    def groups(self, names: Sequence[str]) -> list[Group]:
        found: dict[str, list[int]] = {}
        if not callable(self.groups_of):
            found = {prefix: [] for prefix in self.groups_of}
        for place, name in enumerate(names):
            found.setdefault(self._group_of(name), []).append(place)
        empty = [group for group, members in found.items() if not members]
        if empty:
            raise checks.Refused(
                ("groups_of",),
                f" has {empty[0]!r}, which holds no trained parameter: pass prefixes of "
                f"{', '.join(names)}",
            )
        return self._with_shares(found)

    def _group_of(self, name: str) -> str:
        """Returns the group of a parameter: by the function, or by the longest prefix."""
        if callable(self.groups_of):
            return checks.text(f"the group of {name}", self.groups_of(name))
        fitting = [
            prefix for prefix in self.groups_of if not prefix or f"{name}/".startswith(f"{prefix}/")
        ]
        if not fitting:
            raise checks.Refused(
                f"the parameter {name} is in no group: pass a prefix of it in ",
                ("groups_of",),
                ", or '' for all others",
            )
        return max(fitting, key=len)

    def __repr__(self) -> str:
        """Shows a function by its name, as its address differs between processes."""
        shown: Any = self.groups_of
        if callable(shown):
            shown = getattr(shown, "__qualname__", type(shown).__name__)
        return f"GroupedClipping({shown!r}, shares={self.shares!r})"

    def describe(self) -> dict[str, Any]:
        if callable(self.groups_of):
            raise ValueError(
                "groups_of is a function, which a release cannot state: pass prefixes of "
                "parameters' names"
            )
        return super().describe()


@register_clip_rule("automatic")
@dataclasses.dataclass(frozen=True)
class AutomaticClipping(ClipRule):
    """g C / (|g| + stability): every gradient is scaled, small ones up; nothing to tune in C.

    Bu et al. 2023 (AUTO-S; with stability 0, AUTO-V), equation (1) of https://arxiv.org/abs/2206.07136.
    A contribution is strictly shorter than C. The clip norm only scales the noisy sum (an optimiser
    such as Adam does not notice). It must be at most 2^60: beyond, the product of a weight and of
    one factor of a gradient may overflow. A larger one gives nothing but NaN.

    Attributes:
      stability: added to the norms, in the gradient's own unit, so that gradients far below it
        stay short.
    """

    stability: float = dataclasses.field(default=0.01, metadata={"flag": "clip_stability"})

    def __post_init__(self) -> None:
        checks.not_negative("stability", self.stability)

    def divisor(self, norm: jax.Array) -> jax.Array:
        return norm + np.asarray(self.stability, norm.dtype)

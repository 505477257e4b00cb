"""The decorator that makes a function a mechanism: its provenance follows from its signature.

A law of K is a class (`selection.laws`), a mechanism a function from numbers, texts and guarantees
to a `Guarantee`. What its provenance says, and how that is read back, follow from its name and
its parameters, so that no constructor writes or registers them by hand.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from dpjax import checks
from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee, with_provenance
from dpjax.neighbouring import normalise_relation

P = ParamSpec("P")


def _as_whole(name: str, value: object) -> int:
    """Checks and returns a whole number of any sign."""
    try:
        return checks.whole(name, value, -math.inf)  # The body checks the range.
    except ValueError:
        raise checks.refused(name, value, "a whole number") from None


def _as_guarantee(name: str, value: Any) -> Guarantee:
    checks.instance(name, value, Guarantee, "accounting.gaussian(1.0)")
    return value


_KINDS: dict[Any, Callable[[str, object], Any]] = {
    float: lambda name, value: checks.number(name, value, "a number", finite=False),
    int: _as_whole,
    str: checks.text,
    bool: checks.flag,
    np.ndarray: lambda name, value: checks.vector(name, value, finite=False),
    Guarantee: _as_guarantee,
}
"""Annotation -> a function that turns an argument into the tree's value, or refuses it."""


def mechanism(body: Callable[P, Guarantee]) -> Callable[P, Guarantee]:
    """Decorates a function: its guarantees get a provenance, its name and its arguments.

    The node's mechanism is the function's name, its parameters are the function's, in order and as
    plain JSON values, and arguments that are guarantees are its parts. `from_provenance` calls the
    function with them again. A mechanism of your own is one function:

    ```python
    from dp_accounting.pld import privacy_loss_distribution

    from dpjax import accounting, checks


    @accounting.mechanism
    def repeated_laplace(
        scale: float, steps: int = 1, *, relation: object = "add_or_remove_one"
    ) -> accounting.Guarantee:
        \"\"\"Laplace noise of this scale on numbers of sensitivity 1 (Dwork et al. 2006).\"\"\"
        scale, steps = checks.positive("scale", scale), checks.whole("steps", steps)
        one = accounting.Guarantee.from_pld(
            privacy_loss_distribution.from_laplace_mechanism(scale),
            symmetric=True,
            relation=relation,
            pure_epsilon=1.0 / scale,
        )
        return accounting.repeat(one, steps)


    both = accounting.compose(repeated_laplace(2.0, 3), accounting.gaussian(5.0))
    best = accounting.best_of(both, accounting.Geometric(10))
    assert accounting.from_provenance(best.provenance).epsilon(1e-6) == best.epsilon(1e-6)
    ```

    The body returns any Guarantee that costs at least what the mechanism does: of the functions of
    `dpjax.accounting`, of your own mechanisms, `Guarantee.from_pld` for loss distributions,
    `renyi_only` for a table of Renyi divergences, `pure` for an epsilon. How that one was made is
    forgotten: the tree names this mechanism instead.

    Formal guarantees: none of its own; the guarantee is the body's. The body must be a function of
    its arguments alone (no state, no file, no data), and is called with the values that the tree
    holds, so that a rebuilt guarantee has the same epsilon bit for bit.

    Args:
      body: each parameter is annotated as float, int, str, bool, np.ndarray (a list of numbers),
        Guarantee (a part), one of the first five or None, or is named `relation`. Numbers may be
        passed as any whole or real number, NumPy's included; the body receives plain floats and
        ints, an array for a list, and the canonical name of a relation. A value of another type
        reaches the body as it is, so that the body can refuse it in its own words; if it does not,
        the value is refused here, and so is a guarantee under another relation.
    """
    signature = inspect.signature(body, eval_str=True)
    called: Callable[..., Guarantee] = body  # By names, with the values that the tree holds.
    kinds = {name: _kind_of(body, parameter) for name, parameter in signature.parameters.items()}
    parts = [name for name, kind in kinds.items() if kind is _as_guarantee]

    @functools.wraps(body)
    def constructor(*args: Any, **kwargs: Any) -> Guarantee:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given, refusals = dict(bound.arguments), []
        values = dict(given)
        for name, kind in kinds.items():
            try:
                values[name] = kind(name, given[name])
            except ValueError as refusal:
                # Raised only if the body accepts the value: its own refusal is more helpful.
                refusals.append(refusal)
        try:
            guarantee = called(**values)
        except ValueError:
            # Called again with the original arguments, for its message: -1 is -1.0 in `values`.
            lists = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
            called(**(given | lists))
            raise
        if refusals:
            raise refusals[0]
        _check_returned(body, guarantee, values)
        written = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in values.items()
            if name not in parts
        }
        tree = provenance.node(body.__name__, written, [values[name].provenance for name in parts])
        return with_provenance(guarantee, tree)

    provenance.register(
        body.__name__,
        lambda parameters, rebuilt: constructor(**dict(zip(parts, rebuilt)), **parameters),
    )
    return constructor


def _kind_of(body: Callable, parameter: inspect.Parameter) -> Callable[[str, object], Any]:
    """Returns the function that converts a parameter's argument, by its annotation."""
    name, annotation = parameter.name, parameter.annotation
    named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    if named and name == "relation":
        return lambda name, value: normalise_relation(value)
    if named and typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner, *others = (one for one in typing.get_args(annotation) if one is not types.NoneType)
        if inner in _KINDS and inner is not Guarantee and not others:
            kind = _KINDS[inner]
            return lambda name, value: None if value is None else kind(name, value)
    if not named or annotation not in _KINDS:
        raise ValueError(
            f"parameter {name} of mechanism {body.__name__!r}: annotate it as one of "
            f"{', '.join(kind.__name__ for kind in _KINDS)}, with | None where there is none"
        )
    return _KINDS[annotation]


def _check_returned(body: Callable, guarantee: object, values: dict[str, Any]) -> None:
    """Refuses a result that is not a Guarantee, or is under another relation than was passed."""
    if not isinstance(guarantee, Guarantee):
        raise ValueError(
            f"mechanism {body.__name__!r} returned {checks.shown(guarantee)}: return a Guarantee"
        )
    wanted = values.get("relation", guarantee.relation)
    if guarantee.relation != wanted:
        raise ValueError(
            f"mechanism {body.__name__!r} returned a guarantee under {guarantee.relation!r} where "
            f"relation is {wanted!r}: pass relation on to the function that makes it"
        )

"""The flag that names a clip rule; its own flags are its fields."""

from __future__ import annotations

from absl import flags

from dpjax import training
from dpjax.commands import derived_flags

_CLIPPING = flags.DEFINE_enum(
    "clipping",
    training.GlobalClipping.name,
    list(training.CLIP_RULES),
    "How gradients are clipped: "
    + "; ".join(
        f"{name}: {(cls.__doc__ or '').splitlines()[0].rstrip('.')}"
        for name, cls in training.CLIP_RULES.items()
    )
    + ".",
)

_OPTIONS = {name: derived_flags.options_of(cls) for name, cls in training.CLIP_RULES.items()}

derived_flags.define(_OPTIONS, "--clipping=")


def rule() -> training.ClipRule:
    """Returns the clip rule that the flags ask for."""
    chosen = _CLIPPING.value
    derived_flags.refuse_others(
        derived_flags.owners_of(_OPTIONS), [chosen], "clipping", ", or change the clipping"
    )
    values = derived_flags.given(_OPTIONS[chosen], f"--clipping={chosen}")
    with derived_flags.named_as_flags({one.name: one.flag for one in _OPTIONS[chosen]}):
        return training.CLIP_RULES[chosen](**values)

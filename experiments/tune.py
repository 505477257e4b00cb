"""Privately tunes a classifier and releases one model: `dpjax tune`, from a checkout."""

from dpjax.commands import importing

with importing():
    from absl import flags

    import experiments.data_sets  # noqa: F401 - before the flags, which list what is registered.
    from dpjax.commands import command_line, tune

__doc__ = tune.__doc__
main = tune.main
flags.adopt_module_key_flags(tune)

if __name__ == "__main__":
    command_line.run(main)

"""What does my tuning cost? `dpjax price`, from a checkout."""

from absl import flags

from dpjax.commands import command_line, price

__doc__ = price.__doc__
main = price.main
flags.adopt_module_key_flags(price)

if __name__ == "__main__":
    command_line.run(main)

"""`python -m dpjax` is the program `dpjax`."""

from dpjax.commands.console import main

if __name__ == "__main__":
    main()

"""Command lines: what `dpjax tune`, `dpjax price` and `dpjax verify` run."""

"""The page's prices for other libraries run as written."""

import re

from dpjax import accounting


def test_the_prices_of_the_page_run_as_written(capsys, request):
    page = (request.config.rootpath / "docs" / "bridges.md").read_text()
    page = page[page.index("\n## The price through dp-accounting") : page.index("\n## Tuning")]
    examples = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    for example in examples:
        exec(compile(example, "docs/bridges.md", "exec"), {})
    by_event, by_plan, by_history = map(float, capsys.readouterr().out.split())
    law = accounting.Geometric(10)
    assert by_event == accounting.best_of(accounting.gaussian(2.0), law).epsilon(1e-5)
    assert by_history == accounting.best_of(accounting.dp_sgd(0.01, 1.0, 500), law).epsilon(1e-5)
    assert by_plan > accounting.best_of(accounting.dp_sgd(0.1, 2.0, 50), law).epsilon(1e-5)
    assert f"costs {accounting.dp_sgd(0.01, 1.0, 500).epsilon(1e-5):.3f} at 1e-5" in page

import subprocess
import sys

from jaxppo.metrics import markdown_page, markdown_table
from jaxppo.run.metrics import METRICS
from tests import ROOT


def test_tables_hold_every_metric_once_and_are_the_page_that_the_command_prints():
    rows = [line for line in markdown_table().splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(metric.name for metric in METRICS)
    assert {row.count("|") for row in rows} == {6}
    done = subprocess.run([sys.executable, "-m", "jaxppo.metrics"], capture_output=True, text=True, check=True)
    assert done.stdout == markdown_page() and done.stderr == ""
    page = ROOT / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == markdown_page(), "python -m jaxppo.metrics > docs/metrics.md"

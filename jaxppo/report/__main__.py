"""Write the report of a run, or compare several: `python -m jaxppo.report RUN [RUN2 ...]`.

Every run of `train`, `sft`, `self_train` and `reward_model` writes its `report.html` at its end; this command writes it
again, also while a run goes on, or compares runs.
"""

from pathlib import Path

from jaxppo.config import ReportConfig
from jaxppo.config.sources import parse_flags
from jaxppo.report.comparison import write_comparison
from jaxppo.report.run_page import REPORT_FILE, write_report
from jaxppo.run import cli


def report(config: ReportConfig) -> Path:
    """Write the page of one run or of several; return the file."""
    if len(config.runs) == 1:
        path = write_report(config.runs[0], config.output)
    else:
        path = write_comparison(config.runs, config.output or REPORT_FILE)
    print(f"report in {path}")
    return path


if __name__ == "__main__":
    cli.main(lambda: report(parse_flags(ReportConfig, "report")), uses_jax=False)

"""What every command shares: one line for bad input, exit status 2."""

import os
import sys
from collections.abc import Callable
from typing import Any

from jaxppo.errors import JaxppoError
from jaxppo.metrics import sanitize


def main(command: Callable[[], Any]) -> None:
    """Run a command; a `JaxppoError` becomes one line on standard error and exit status 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        command()
    except JaxppoError as error:
        print(f"error: {sanitize(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; --resume with the same --output_dir goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)

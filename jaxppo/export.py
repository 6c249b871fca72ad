"""Write the models of a checkpoint as Hugging Face folders: `python -m jaxppo.export --run_dir RUN`.

With `--push_to_hub` they go to the Hugging Face hub; where nothing is said of which weights to export and how, those
are pushed that a finished run has written already.
"""

from pathlib import Path

from jaxppo import hf
from jaxppo.config import ExportConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import DataError
from jaxppo.hf import hub
from jaxppo.hf.export import TOKENIZER_FOLDER, frozen_weights, write_models
from jaxppo.run import activity, cli
from jaxppo.run import folder as run_folder
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.console import Console
from jaxppo.run.jsonl import read_metrics


def export(config: ExportConfig) -> Path:
    """Write the models of a checkpoint, and push them where that is asked for; returns the folder that holds them."""
    console, run = Console(config.quiet), Path(config.run_dir or "")
    activity.show_on(console)
    repo_id = hub.destination(config.hub, run) if config.hub.push_to_hub else None
    # Nothing is computed for a push of what the run
    # has written: its folders are what was evaluated.
    as_they_are = (
        repo_id is not None
        and not config.has_export_options
        and config.run_dir is not None
        and hub.models_folder(run) is not None
    )
    folder = run if as_they_are else _write(config, run, console)
    if repo_id is not None:
        console.print(f"from {folder} to {repo_id} on the hub")
        if not config.dry_run:
            console.result(f"models at {hub.push_models(folder, repo_id, config.hub.hub_private)}")
    return folder


def _write(config: ExportConfig, run: Path, console: Console) -> Path:
    """Write the models of a checkpoint; returns the folder that holds them."""
    if config.run_dir is None or not (run / "checkpoints").is_dir():
        raise DataError(
            f"run_dir: expected a run folder with checkpoints, got {config.run_dir}; name it with --run_dir"
        )
    params, meta, step = Checkpoints(run / "checkpoints", keep=1).restore_params(
        config.step, console.warn
    )
    frozen = None if meta["models"]["adapter"] is None else frozen_weights(meta["models"], params)
    folder = Path(config.output_dir or run / "exports" / str(step))
    console.print(f"update {step} of {run}: {', '.join(params)}, into {folder}")
    if config.dry_run:
        return folder
    evals = run_folder.read_json(run / run_folder.EVAL_FILE)
    if step != len(read_metrics(run / run_folder.METRICS_FILE)):  # evaluated was the last update
        evals = {name: evals[name] for name in ("before", "headline_split") if name in evals}
    tokenizer = hf.load_tokenizer(run / TOKENIZER_FOLDER)
    write_models(
        folder,
        meta,
        params,
        frozen,
        tokenizer,
        evals,
        dtype=config.dtype,
        max_shard_size=config.max_shard_size,
    )
    console.result(f"models in {folder}")
    return folder


if __name__ == "__main__":
    cli.main(lambda: export(parse_cli(ExportConfig, "export")))

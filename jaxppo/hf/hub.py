"""Push the models of a run, or a data set, to the Hugging Face hub.

A run is finished before it is pushed, and a push that fails is one warning with the command that repeats it. The token
is huggingface_hub's matter (`hf auth login`, or HF_TOKEN): nothing here keeps or shows it.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from jaxppo import __version__
from jaxppo.config import HubConfig, require_repo_id
from jaxppo.config.redact import redact, redact_command
from jaxppo.errors import ConfigError, DataError, HubError
from jaxppo.hf.export import ADAPTERS, REWARD_MODEL
from jaxppo.parallel import processes
from jaxppo.run.console import sanitize
from jaxppo.run.folder import Run

_REPLACED_FILES = {
    "model": re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|(value|adapters)/.*"),
    "dataset": re.compile(r"(train|rl|repair|test(_\w+)?)\.(jsonl|parquet)"),
}
"""Files of an earlier push that do not belong to this one: of another number of shards, of splits that are gone."""


@contextmanager
def pushed(run: Run) -> Iterator[None]:
    """Push the models of a run when the block has ended well and the run is finished; one process does.

    Args:
        run: its `hub` settings say whether, and to which repository.

    Raises:
        ConfigError: as for `destination`, before the block.
    """
    hub = run.config.hub
    folder = run.folder
    # Before the block: a push that cannot work is refused before hours of training.
    repo_id = processes.on_first(lambda: destination(hub, folder)) if hub.push_to_hub else None
    yield
    if repo_id is None or not processes.is_first():
        return
    try:
        url = push_models(folder, repo_id, hub.hub_private)
    # The run is complete without the push: neither a failure nor Ctrl-C makes it fail.
    except (HubError, KeyboardInterrupt) as error:
        reason = str(error) or "stopped by Ctrl-C"
        words = ["python", "-m", "jaxppo.export", "--run_dir", str(folder), "--push_to_hub"]
        words += ["--hub_model_id", repo_id]
        if hub.hub_private:
            words.append("--hub_private")
        run.console.warn(
            f"push_to_hub: {reason}; the run is complete in {folder}, and this pushes again: {redact_command(words)}"
        )
    else:
        run.console.result(f"models at {url}")


def destination(hub: HubConfig, folder: Path) -> str:
    """Return the repository that the models of a folder are pushed to.

    Args:
        hub: settings.
        folder: of the run; without a `hub_model_id` its name is that of the repository.

    Raises:
        ConfigError: nothing can be pushed from here: the hub is switched off, there is no token, or no name.
    """
    from huggingface_hub import HfApi, constants, get_token  # slow to import

    if constants.HF_HUB_OFFLINE:
        raise ConfigError(
            "push_to_hub: expected a hub that can be asked, got HF_HUB_OFFLINE; unset it, or push later"
        )
    if get_token() is None:
        raise ConfigError(
            "push_to_hub: expected a token of the hub, got none; `hf auth login` or HF_TOKEN gives one"
        )
    if hub.hub_model_id is not None:
        return hub.hub_model_id
    try:
        user = HfApi().whoami()["name"]
    except Exception as error:  # the hub's many errors, and those of the network
        raise ConfigError(
            f"hub_model_id: expected user/name, got None, and the hub does not say who the user is ({_reason(error)})"
        ) from error
    repo_id = f"{user}/{folder.resolve().name}"
    require_repo_id("hub_model_id", repo_id)
    return repo_id


def models_folder(folder: Path) -> Path | None:
    """Return the folder of the main model that a run or an export has written: a policy, or a reward model."""
    folders = [folder / name for name in ("policy", REWARD_MODEL)]
    return next(filter(Path.is_dir, folders), None)


def model_files(folder: Path) -> dict[str, Path]:
    """Map each path in a repository to a file of a run or of an export.

    The policy, or the reward model, lies at the top, where `from_pretrained` looks for it; `value/` and `adapters/`
    keep their places.

    Raises:
        DataError: there are no models.
    """
    main_folder = models_folder(folder)
    if main_folder is None:
        raise DataError(
            f"{folder}: expected the models of a finished run, policy/ or {REWARD_MODEL}/, got none"
        )
    # Names in the repository: what `from_pretrained` and `subfolder=` look for.
    files = {}
    for prefix, root in (
        ("", main_folder),
        ("value/", folder / "value"),
        (f"{ADAPTERS}/", folder / ADAPTERS),
    ):
        for path in sorted(root.rglob("*")):
            if path.is_file():
                files[f"{prefix}{path.relative_to(root).as_posix()}"] = path
    return files


def push_models(folder: Path, repo_id: str, private: bool) -> str:
    """Push the models of a run or of an export; see `model_files` and `push`."""
    return push(model_files(folder), repo_id, private, "model")


def push(
    files: Mapping[str, Path], repo_id: str, private: bool, kind: Literal["model", "dataset"]
) -> str:
    """Push files in one commit: the repository has all of them, or is as it was. A missing repository is created.

    Files of an earlier push that do not fit these are deleted in the same commit; all others stay.

    Args:
        files: path in the repository to the file.
        repo_id: user/name.
        private: make a new repository private, and refuse one that is not.
        kind: of repository.

    Returns:
        Where it is.

    Raises:
        HubError: the hub did not take them.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    try:
        api = HfApi(library_name="jaxppo", library_version=__version__)
        # `exist_ok` leaves the visibility of an existing
        # repository as it is, so that it is looked at.
        api.create_repo(repo_id, repo_type=kind, private=private or None, exist_ok=True)
        repo = api.model_info(repo_id) if kind == "model" else api.dataset_info(repo_id)
        if private and not repo.private:
            raise HubError(
                f"{repo_id}: expected a private repository, got one that all can see: nothing was pushed"
            )
        # One commit: nobody downloads half of an old model and half of a new one.
        operations: list[Any] = [CommitOperationAdd(name, path) for name, path in files.items()]
        for sibling in repo.siblings or ():
            name = sibling.rfilename
            if name not in files and _REPLACED_FILES[kind].fullmatch(name):
                operations.append(CommitOperationDelete(name, is_folder=False))
        message = f"Pushed by jaxppo {__version__}"
        api.create_commit(repo_id, operations, commit_message=message, repo_type=kind)
    except HubError:
        raise
    except Exception as error:  # the hub's many errors, and those of the network
        raise HubError(
            f"{repo_id}: expected the hub to take {len(files)} files, got: {_reason(error)}"
        ) from error
    return redact(f"{api.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo_id}")


def _reason(error: BaseException) -> str:
    """Return an error of the hub or the network as one line without secrets."""
    # Names the file, and its cause the reason
    if isinstance(error, RuntimeError) and error.__cause__ is not None:
        return f"{error}: {_reason(error.__cause__)}"
    return sanitize(
        redact(" ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")), limit=400
    )

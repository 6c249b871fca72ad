"""What goes to the Hugging Face hub."""

from dataclasses import dataclass

from jaxppo.config.checks import require_default, require_repo_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """Whether models go to the Hugging Face hub once they are written."""

    push_to_hub: bool = False
    """Push the models to the Hugging Face hub at the end: policy, value model and adapters, in one repository. It takes
    the token of `hf auth login`, or that in HF_TOKEN (docs/models.md)."""
    hub_model_id: str | None = None
    """Repository to push to, user/name; default: named like the run folder, and of the user whose token it is."""
    hub_private: bool = False
    """Make the repository private; an existing one must be private already. Default: as its owner has set it for new
    ones."""

    def __post_init__(self) -> None:
        if self.hub_model_id is not None:
            require_repo_id("hub_model_id", self.hub_model_id)
        if not self.push_to_hub:
            for name in ("hub_model_id", "hub_private"):
                require_default(self, name, "without --push_to_hub")

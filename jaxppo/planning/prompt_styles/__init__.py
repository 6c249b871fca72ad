"""The prompt styles, a module each; `jaxppo.planning.prompts` chooses among them."""

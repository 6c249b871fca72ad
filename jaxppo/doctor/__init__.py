"""Check the installation and say what is missing and what to install: `python -m jaxppo.doctor`."""

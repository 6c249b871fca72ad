"""Look at what is installed and say what to install for what: `python -m jaxppo.doctor`."""

"""Names only: see the docstring of the package torchvision."""

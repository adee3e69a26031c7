"""The names of `torchvision` that SGLang 0.5.23 and transformers import before they serve a text model.

A stand-in for tests only, found by way of PYTHONPATH of the served process and never installed: a torchvision
from the package index is built for one torch and one CUDA, and a CPU build of torch refuses it. No image is ever
processed here; a function that is called all the same says so.
"""

__version__ = "0.0.0"

"""A performance regression suite for SGLang servers: start them, load them, judge them."""

__version__ = "0.2.0"

"""A performance regression suite for SGLang servers: start them, load them, judge them."""

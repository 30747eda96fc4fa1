"""stamm: activation functions derived from their gradients, on data taken with consent."""

__version__ = "0.1.0"

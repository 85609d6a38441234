"""Decide what a GPU node can serve and say exactly what must stand on it to serve it."""

__version__ = "0.1.0"

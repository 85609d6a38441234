"""Show what would be served on every host and why: `pyinfra INVENTORY deploys/explain.py --dry`."""

from deploys.steps import planning

planning.explained()

"""Show what would be served on every host and why; changes nothing."""

from deploys.steps import planning

planning.explained()

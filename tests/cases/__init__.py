"""What people reported of real rigs, and what we decide there."""

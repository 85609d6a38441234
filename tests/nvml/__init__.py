"""A stand-in for libnvidia-ml.so.1, so that the real pynvml sees any rig and any failure."""

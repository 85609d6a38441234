"""What compiles CUDA on a node; says nothing of the CUDA version that its driver serves."""

from facts.node import Section


class Toolkits(Section):
    """CUDA toolkits with their versions."""

    section = "toolkits"


class Compilers(Section):
    """Compilers, nvcc among them, and what builds with them."""

    section = "compilers"
